"""Fitting of feature pipelines, and extraction of features from records."""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pacdp.data import Dataset
from pacdp.data.proxy import refuse_overlap
from pacdp.data.records import Array, Records
from pacdp.errors import InputError
from pacdp.features.base import Extractor
from pacdp.features.cache import DamagedFileError, read_or_make
from pacdp.features.configuration import MOST_DIMENSIONS, Features
from pacdp.features.extractors import make_extractor, transform_records
from pacdp.features.projection import Projection, normalise_rows
from pacdp.features.public_data import load_public_data
from pacdp.features.synthetic import generate_images
from pacdp.progress import Progress, ignore_progress

# Increase this when the same settings produce different features, to invalidate cached files.
_VERSION = 1
# The number of images from which filters and directions are learned.
_REFERENCE = 6000


@dataclass(frozen=True, eq=False, kw_only=True)
class FeaturePipeline:
    """A fitted extractor and projection, with their provenance."""

    settings: Features
    extractor: Extractor
    provenance: dict[str, str]
    """The public records with their digest, if any, and the shape of the records it takes."""
    projection: Projection | None = None
    """None for records that are not images, which are only scaled."""
    key: str = ""
    """Identifies the fitted pipeline in the cache."""

    def transform(self, dataset: Dataset, *, progress: Progress = ignore_progress) -> Dataset:
        """Replace the features of a data set; labels, clients and identities stay the same.

        The records are not compared with the public ones: :func:`extract_features` does that.
        """

        def transform(records: Records) -> Records:
            features = normalise_rows(
                torch.from_numpy(self._project(records, dataset.name, progress)),
                None if self.projection is None else self.projection.spread,
                dimension=self.settings.dimension,
                whitening=self.settings.whitening,
            )
            return replace(records, features=features.numpy(), keys=records.identities())

        return dataset.map_records(transform)

    def _project(self, records: Records, name: str, progress: Progress) -> Array:
        """Return the coordinates along all principal directions, from the cache if possible."""
        if self.projection is None:
            return records.features.reshape(len(records), -1).astype(np.float32)
        projection, shape = self.projection, (len(records), len(self.projection.spread))
        content = hashlib.sha256(np.ascontiguousarray(records.features).data).hexdigest()

        def make(path: Path) -> None:
            values, done = np.empty(shape, np.float32), 0
            for rows in transform_records(self.extractor, records):
                values[done : done + len(rows)] = projection.transform(rows).numpy()
                done += len(rows)
                progress(f"{self.settings.name} of {name}", done, len(records))
            # A stream, because np.save would append its own ending to a path.
            with path.open("wb") as out:
                np.save(out, values)

        def read(path: Path) -> Array:
            try:
                values: Array = np.load(path, allow_pickle=False)
            except (ValueError, EOFError) as error:
                raise DamagedFileError from error
            if values.shape != shape or values.dtype != np.float32:
                raise DamagedFileError
            return values

        return read_or_make(f"{self.key}-{content[:16]}.npy", read=read, make=make)


def extract_features(
    dataset: Dataset, settings: Features, *, progress: Progress = ignore_progress
) -> Dataset:
    """Replace the features of private records; raise DataError if public data share any of them.

    >>> from pacdp.data import load_dataset
    >>> heart = extract_features(load_dataset("heart"), Features())
    >>> round(float((heart.train.features[0] ** 2).sum()), 6)
    1.0
    """
    refuse_public_overlap(settings, dataset)
    pipeline = fit_features(settings, dataset.shape, progress=progress)
    return pipeline.transform(dataset, progress=progress)


def refuse_public_overlap(settings: Features, dataset: Dataset) -> None:
    """Raise DataError if public data, for training or selection, share private records.

    >>> from pacdp.data import load_dataset
    >>> refuse_public_overlap(Features(name="gradients"), load_dataset("digits"))
    """
    if settings.public is not None:
        _refuse_overlap(settings.public, dataset)


# Only successful checks are cached: an exception is raised anew on every call.
@lru_cache(maxsize=2)
def _refuse_overlap(name: str, dataset: Dataset) -> None:
    public = load_public_data(name)
    parts = (public.training, public.selection_training, public.selection_proxy.data)
    # The same part may be used twice, and is checked once.
    for part in {id(part): part for part in parts}.values():
        refuse_overlap(part, dataset)


def fit_features(
    settings: Features,
    shape: tuple[int, ...],
    *,
    for_selection: bool = False,
    progress: Progress = ignore_progress,
) -> FeaturePipeline:
    """Fit the pipeline for records of the given shape; fitted pipelines are cached on disk.

    With ``for_selection``, the public records on which configurations are compared are not used.

    >>> pipeline = fit_features(Features(), (6,))
    >>> pipeline.provenance["records"], pipeline.settings.track
    ('none', 'private-only')
    """
    if len(shape) != 3 and (settings.name != "plain" or settings.dimension is not None):
        raise InputError(
            f"representation = {settings.name}: takes images, these records are {shape}; "
            "must be plain, without a dimension"
        )
    extractor = make_extractor(settings.name, shape, settings.settings)
    if len(shape) != 3:
        made_by = "values of one record scaled to length one"
        provenance = {"records": "none", "made by": made_by, "shape": str(shape)}
        return FeaturePipeline(settings=settings, extractor=extractor, provenance=provenance)
    public = _load_training_data(settings, shape, for_selection)
    content = {
        **settings.model_dump(mode="json", exclude={"dimension", "whitening"}),
        "settings": extractor.settings,
        "shape": shape,
        "records": None if public is None else public.train.digest,
        "version": _VERSION,
    }
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    pipeline = read_or_make(
        f"{key}.safetensors",
        read=lambda path: _load_pipeline(path, settings, shape, key),
        make=lambda path: _fit_pipeline(path, settings, shape, extractor, public, progress),
    )
    assert pipeline.projection is not None
    most = len(pipeline.projection.spread)
    if settings.dimension is not None and settings.dimension > most:
        raise InputError(f"representation.dimension = {settings.dimension}: must be at most {most}")
    return pipeline


def _load_training_data(
    settings: Features, shape: tuple[int, ...], for_selection: bool
) -> Dataset | None:
    """Load the public records that the extractor learns from, if any."""
    if settings.public is None:
        return None
    public = load_public_data(settings.public)
    records = public.selection_training if for_selection else public.training
    if records.shape != shape:
        raise InputError(
            f"representation.public = {settings.public}: has records {records.shape}, must have "
            f"{shape}"
        )
    return records


def _fit_pipeline(
    path: Path,
    settings: Features,
    shape: tuple[int, ...],
    extractor: Extractor,
    public: Dataset | None,
    progress: Progress,
) -> None:
    """Fit the extractor and the projection, and write both."""
    if public is None:
        images = generate_images(shape, records=_REFERENCE, seed=settings.seed)
        training = reference = Records(features=images, labels=np.zeros(len(images), np.int64))
        provenance = {"records": "none", "made by": f"generated images, seed {settings.seed}"}
    else:
        order = np.random.default_rng([settings.seed, 14]).permutation(len(public.train))
        reference = public.train.take(order[:_REFERENCE])
        training = public.train if settings.name == "network" else reference
        provenance = {
            "records": public.name,
            "number": str(len(public.train)),
            "source": str(public.provenance),
            "sha256": public.train.digest,
            "made by": f"seed {settings.seed}",
        }
    classes = 0 if public is None else public.task.stratum_count
    extractor.fit(training, classes=classes, seed=settings.seed, progress=progress)
    rows: list[torch.Tensor] = []
    for batch in transform_records(extractor, reference):
        rows.append(batch)
        progress(f"directions of {settings.name}", sum(map(len, rows)), len(reference))
    projection = Projection.fit(torch.cat(rows), MOST_DIMENSIONS)
    states = {"map": extractor.state_dict(), "projection": vars(projection)}
    tensors = {f"{k}.{n}": v.contiguous() for k, state in states.items() for n, v in state.items()}
    save_file(tensors, path, metadata=provenance)


def _load_pipeline(
    path: Path, settings: Features, shape: tuple[int, ...], key: str
) -> FeaturePipeline:
    """Read what :func:`_fit_pipeline` wrote."""
    states: dict[str, dict[str, torch.Tensor]] = {"map": {}, "projection": {}}
    extractor = make_extractor(settings.name, shape, settings.settings)
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                part, _, inner = name.partition(".")
                states[part][inner] = file.get_tensor(name)
            provenance = dict(file.metadata() or {})
        projection = Projection(**states["projection"])
        extractor.load_state_dict(states["map"])
    except (SafetensorError, TypeError, KeyError, RuntimeError) as error:
        raise DamagedFileError from error
    extractor.eval()
    if extractor.transform(torch.zeros(1, *shape)).shape[1] != len(projection.middle):
        raise DamagedFileError
    return FeaturePipeline(
        settings=settings,
        extractor=extractor,
        projection=projection,
        # The shape is part of it: the same settings fit another pipeline to other shapes.
        provenance={**provenance, "shape": str(shape)},
        key=key,
    )
