"""Published file formats of image sets, read into arrays of bytes.

A file that is truncated, has the wrong size or is of another format is refused by its name. It
could be any of the user's files, so no error quotes its content. Whether it is the genuine file is
verified by the checksums in :mod:`pacdp.data.images`.
"""

import gzip
import io
import json
import math
import pickle
import warnings
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pacdp.data.storage import LARGEST_MEMBER, refuse_damaged
from pacdp.errors import DataError
from pacdp.validation import describe_type

Bytes = NDArray[np.uint8]
PIXELS = (3, 32, 32)


def read_idx(path: Path, *, dimensions: int) -> Bytes:
    """Read an idx file of unsigned bytes, MNIST's format, plain or gzipped.

    The first dimension counts the records. The size must be that in the header.
    """
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            with gzip.open(raw) if zipped else raw as stream:
                start = stream.read(4)
                sizes = stream.read(4 * dimensions)
                if start != bytes([0, 0, 8, dimensions]) or len(sizes) != 4 * dimensions:
                    raise DataError(f"{path}: is no idx file of bytes in {dimensions} dimensions")
                shape = tuple(np.frombuffer(sizes, ">u4").astype(int).tolist())
                if not 0 < math.prod(shape) <= LARGEST_MEMBER:
                    raise DataError(
                        f"{path}: promises {shape}, more or less than any data set here"
                    )
                # Read in place, so that there is never a second copy.
                values = np.empty(shape, np.uint8)
                buffer, done = values.reshape(-1).data, 0
                while size := stream.readinto(buffer[done:]):
                    done += size
                if done != len(buffer) or stream.read(1):
                    actual = done if done != len(buffer) else "more"
                    raise DataError(f"{path}: holds {actual} bytes, must hold {len(buffer)}")
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise DataError(f"{path}: is damaged, cannot be unpacked as gzip") from None
    return values


def write_idx(path: Path, values: Bytes) -> None:
    """Write an idx file, plain.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels"
    >>> write_idx(path, np.array([7, 2], np.uint8))
    >>> read_idx(path, dimensions=1).tolist()
    [7, 2]
    """
    with path.open("wb") as out:
        out.write(bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes())
        out.write(np.ascontiguousarray(values).data)


def read_cifar_binary(
    paths: Sequence[Path], *, records: int, label_bytes: int
) -> tuple[Bytes, Bytes]:
    """Read images (n, 3, 32, 32) and label bytes (n, label_bytes) of CIFAR's binary version.

    Each file has ``records`` rows, each with the label bytes followed by the pixels.
    """
    row = label_bytes + math.prod(PIXELS)
    for path in paths:
        size = path.stat().st_size
        if size != records * row:
            raise DataError(f"{path}: has {size} bytes, must have {records * row}")
    rows = np.concatenate([np.fromfile(path, np.uint8) for path in paths]).reshape(-1, row)
    return rows[:, label_bytes:].reshape(-1, *PIXELS), rows[:, :label_bytes].copy()


def write_cifar_binary(path: Path, images: Bytes, labels: Bytes) -> None:
    """Write a file of CIFAR's binary version."""
    with path.open("wb") as out:
        out.writelines(rows.data for rows in cifar_rows(images, labels))


def cifar_rows(images: Bytes, labels: Bytes) -> Iterator[Bytes]:
    """Yield the rows of a file of CIFAR's binary version, a thousand at a time."""
    for start in range(0, len(images), 1000):
        part = slice(start, start + 1000)
        yield np.concatenate([labels[part], images[part].reshape(-1, math.prod(PIXELS))], axis=1)


class _PlainUnpickler(pickle.Unpickler):
    """Reads arrays, strings and numbers, and refuses to call anything else."""

    ALLOWED = (
        ("_codecs", "encode"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
    )

    def __init__(self, path: Path) -> None:
        super().__init__(io.BytesIO(path.read_bytes()), encoding="bytes")
        self.path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise DataError(
                f"{self.path}: asks for code to be run, must hold arrays and labels only"
            )
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_cifar_pickle(
    path: Path, *, records: int, label_keys: Sequence[str]
) -> tuple[Bytes, Bytes]:
    """Read images and label bytes of CIFAR's Python version, without running its pickle."""
    with refuse_damaged(f"{path}: is damaged, is no batch of CIFAR's Python version"):
        content = _PlainUnpickler(path).load()
        images = np.asarray(content[b"data"])
        labels = np.stack([np.asarray(content[key.encode()]) for key in label_keys], axis=1)
        if images.dtype != np.uint8 or images.shape != (records, math.prod(PIXELS)):
            raise DataError(f"{path}: images are {describe_type(images)} {images.shape}")
        fits = labels.shape == (records, len(label_keys)) and labels.dtype.kind in "iu"
        if not fits or labels.min() < 0 or labels.max() > 255:
            raise DataError(f"{path}: labels are {describe_type(labels)} {labels.shape}")
    return images.reshape(-1, *PIXELS), labels.astype(np.uint8)


def read_image_rows(path: Path, *, records: int) -> Bytes:
    """Read images (n, 3, 32, 32) from a PNG picture in which each row of pixels is an image."""
    from PIL import Image

    with (
        refuse_damaged(f"{path}: is damaged, is no PNG picture"),
        warnings.catch_warnings(action="error"),
        Image.open(path) as picture,
    ):
        if picture.format != "PNG" or picture.size != (32 * 32, records):
            wanted = f"PNG of {(32 * 32, records)}"
            raise DataError(f"{path}: is {picture.format} of {picture.size}, must be {wanted}")
        rows = np.asarray(picture.convert("RGB"))
    return rows.reshape(records, 32, 32, 3).transpose(0, 3, 1, 2)


def read_json_labels(path: Path, *, records: int) -> Bytes:
    """Read a JSON list of labels, as (n, 1) bytes."""
    with refuse_damaged(f"{path}: is damaged, is no JSON list of labels", OSError):
        labels = np.asarray(json.loads(path.read_bytes()))
    if labels.shape != (records,) or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path}: holds {describe_type(labels)} {labels.shape}, must be {records} labels"
        )
    if labels.min() < 0 or labels.max() > 255:
        raise DataError(f"{path}: holds labels outside 0 to 255")
    return labels.astype(np.uint8)[:, None]
