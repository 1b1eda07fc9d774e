"""From settings to a map, and from records to what the map makes of them; both are kept on disk."""

import hashlib
import json
from collections.abc import Mapping
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
from pacdp.features.cache import DamagedError, kept
from pacdp.features.configuration import MOST_DIMENSIONS, Features
from pacdp.features.extractors import Map, all_settings, answers, learned, map_of, restored
from pacdp.features.network import Observer
from pacdp.features.projection import Projection, principal, shaped
from pacdp.features.public_data import load_public_data
from pacdp.features.synthetic import generated

# Another number where the same settings give another map: what is on disk is then left alone.
_VERSION = 1
# Images that filters and directions are learned from.
_REFERENCE = 6000


def quiet(words: str, done: int, total: int) -> None:
    """Tells nobody.

    >>> quiet("training", 1, 12)
    """


@dataclass(frozen=True, eq=False, kw_only=True)
class Fitted:
    """A map that is ready, with what it was made from."""

    settings: Features
    features: Map
    projection: Projection | None
    provenance: dict[str, str]
    """Public records and their digest, or none; and the shape of records that it takes."""
    key: str

    def transform(self, dataset: Dataset, *, observe: Observer = quiet) -> Dataset:
        """The same records as the map sees them: their labels, holders and identities stay."""
        return replace(
            dataset,
            train=self._records(dataset.train, dataset.name, observe),
            test=self._records(dataset.test, dataset.name, observe),
        )

    def _records(self, records: Records, name: str, observe: Observer) -> Records:
        made = shaped(
            torch.from_numpy(self._values(records, name, observe)),
            None if self.projection is None else self.projection.spread,
            dimension=self.settings.dimension,
            whitening=self.settings.whitening,
        )
        return replace(records, features=made.numpy(), keys=records.identities())

    def _values(self, records: Records, name: str, observe: Observer) -> Array:
        """Where records lie along all directions: from the disk, where it has been asked before."""
        if self.projection is None:
            return records.features.reshape(len(records), -1).astype(np.float32)
        content = hashlib.sha256(np.ascontiguousarray(records.features).data).hexdigest()
        projection, size = self.projection, (len(records), len(self.projection.spread))

        def make(path: Path) -> None:
            values = self._computed(records, name, projection, observe)
            with path.open("wb") as out:
                np.save(out, values)

        return kept(
            f"{self.key}-{content[:16]}.npy", read=lambda path: _numbers(path, size), make=make
        )

    def _computed(
        self, records: Records, name: str, projection: Projection, observe: Observer
    ) -> Array:
        found = np.empty((len(records), len(projection.spread)), np.float32)
        done = 0
        for some in answers(self.features, records):
            found[done : done + len(some)] = projection(some).numpy()
            done += len(some)
            observe(f"{self.settings.name} of {name}", done, len(records))
        return found


def extract_features(dataset: Dataset, settings: Features, *, observe: Observer = quiet) -> Dataset:
    """Private records as a public map sees them; a map that was made from any of them is refused.

    >>> from pacdp.data import load_dataset
    >>> seen = extract_features(load_dataset("heart"), Features())
    >>> round(float((seen.train.features[0] ** 2).sum()), 6)
    1.0
    """
    refuse_public_overlap(settings, dataset)
    ready = fit_features(settings, dataset.shape, observe=observe)
    return ready.transform(dataset, observe=observe)


def refuse_public_overlap(settings: Features, dataset: Dataset) -> None:
    """Refuse public records, to learn from or to judge by, that are also private ones.

    >>> from pacdp.data import load_dataset
    >>> refuse_public_overlap(Features(name="gradients"), load_dataset("digits"))
    """
    if settings.public is not None:
        _refuse_private(settings.public, dataset)


@lru_cache(maxsize=2)
def _refuse_private(name: str, dataset: Dataset) -> None:
    """The same, once for each: a refusal is not kept, what is apart stays apart."""
    public = load_public_data(name)
    parts = (public.training, public.selection_training, public.selection_proxy.data)
    # One part may serve twice, and is looked at once.
    for part in {id(part): part for part in parts}.values():
        refuse_overlap(part, dataset)


def fit_features(
    settings: Features,
    shape: tuple[int, ...],
    *,
    for_selection: bool = False,
    observe: Observer = quiet,
) -> Fitted:
    """The map for records of a shape; what it must learn is learned once, and kept.

    With ``for_selection`` it learns nothing from the public records that plans are judged by.

    >>> ready = fit_features(Features(), (6,))
    >>> ready.provenance["records"], ready.settings.track
    ('none', 'private-only')
    """
    chosen = all_settings(settings.name, settings.settings)
    if len(shape) != 3:
        if settings.name != "plain" or settings.dimension is not None:
            raise InputError(
                f"representation = {settings.name}: takes images, these records are {shape}; "
                "must be plain, without a dimension"
            )
        return Fitted(
            settings=settings,
            features=map_of("plain", {}, None),
            projection=None,
            provenance={
                "records": "none",
                "made by": "values of one record scaled to length one",
                "shape": str(shape),
            },
            key="",
        )
    records = _public(settings, shape, for_selection)
    content = {
        **settings.model_dump(mode="json", exclude={"dimension", "whitening"}),
        "settings": chosen,
        "shape": shape,
        "records": None if records is None else records.train.digest,
        "version": _VERSION,
    }
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    found = kept(
        f"{key}.safetensors",
        read=lambda path: _read(path, settings, shape, chosen, key),
        make=lambda path: _make(path, settings, shape, chosen, records, observe),
    )
    assert found.projection is not None
    most = len(found.projection.spread)
    if settings.dimension is not None and settings.dimension > most:
        raise InputError(f"representation.dimension = {settings.dimension}: must be at most {most}")
    return found


def _public(settings: Features, shape: tuple[int, ...], for_selection: bool) -> Dataset | None:
    """The public records it learns from, if any."""
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


def _make(
    path: Path,
    settings: Features,
    shape: tuple[int, ...],
    chosen: Mapping[str, int],
    records: Dataset | None,
    observe: Observer,
) -> None:
    """Learn what is to be learned, find the directions, and write both."""
    if records is None:
        images = generated(shape, records=_REFERENCE, seed=settings.seed)
        teaching = reference = Records(features=images, labels=np.zeros(len(images), np.int64))
        made_from = {"records": "none", "made by": f"generated images, seed {settings.seed}"}
    else:
        order = np.random.default_rng([settings.seed, 14]).permutation(len(records.train))
        reference = records.train.take(order[:_REFERENCE])
        teaching = records.train if settings.name == "network" else reference
        made_from = {
            "records": records.name,
            "number": str(len(records.train)),
            "source": str(records.provenance),
            "sha256": records.train.digest,
            "made by": f"seed {settings.seed}",
        }
    classes = 0 if records is None else records.task.group_count
    module = learned(
        *(settings.name, chosen, teaching, classes), seed=settings.seed, observe=observe
    )
    rows: list[torch.Tensor] = []
    for some in answers(map_of(settings.name, chosen, module), reference):
        rows.append(some)
        observe(f"directions of {settings.name}", sum(map(len, rows)), len(reference))
    found = vars(principal(torch.cat(rows), MOST_DIMENSIONS))
    state = {} if module is None else module.state_dict()
    tensors = {f"map.{name}": value.contiguous() for name, value in state.items()}
    tensors |= {f"projection.{name}": value.contiguous() for name, value in found.items()}
    save_file(tensors, path, metadata=made_from)


def _read(
    path: Path,
    settings: Features,
    shape: tuple[int, ...],
    chosen: Mapping[str, int],
    key: str,
) -> Fitted:
    """What :func:`_make` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            provenance = dict(file.metadata() or {})
    except SafetensorError as error:
        raise DamagedError from error
    parts = {
        kind: {n.removeprefix(kind): v for n, v in tensors.items() if n.startswith(kind)}
        for kind in ("map.", "projection.")
    }
    try:
        projection = Projection(**parts["projection."])
        module = restored(settings.name, chosen, shape[0], parts["map."])
    except (TypeError, KeyError, RuntimeError) as error:
        raise DamagedError from error
    features = map_of(settings.name, chosen, module)
    with torch.no_grad():
        length = features(torch.zeros(1, *shape)).shape[1]
    if length != len(projection.middle):
        raise DamagedError
    return Fitted(
        settings=settings,
        features=features,
        projection=projection,
        # The same settings make another map of records of another shape.
        provenance={**provenance, "shape": str(shape)},
        key=key,
    )


def _numbers(path: Path, size: tuple[int, int]) -> Array:
    """The numbers of a file, which must be as many as were written."""
    try:
        values: Array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DamagedError from error
    if values.shape != size or values.dtype != np.float32:
        raise DamagedError
    return values
