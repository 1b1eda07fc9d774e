"""Tensors as bytes: weights as safetensors, and coarse updates as compressed integers."""

import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save
from torch import Tensor

from pacdp.federation.uploads import LARGEST_WHOLE, count_steps
from pacdp.federation.wire.frames import Code, WireError

Tensors = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]

# LARGEST_WHOLE has 21 bits including its sign, and a varint holds 7 bits per byte.
_MOST_BYTES = 3
_SINGLE = np.dtype("<f4")


def count_values(shapes: Shapes) -> int:
    """Return the number of values in tensors of these shapes.

    >>> count_values({"weight": (2, 13), "bias": (2,)})
    28
    """
    return sum(math.prod(shape) for shape in shapes.values())


def largest_weights(shapes: Shapes) -> int:
    """Return an upper bound on the size of tensors of these shapes as safetensors."""
    # An upper bound for a tensor's description, in which each character may be escaped.
    described = sum(128 + 6 * len(name) + 20 * len(shape) for name, shape in shapes.items())
    return 64 + described + _SINGLE.itemsize * count_values(shapes)


def encode_weights(values: Mapping[str, Tensor], shapes: Shapes) -> bytes:
    """Encode tensors as safetensors; refuse other names, shapes or types, and NaN.

    >>> written = encode_weights({"w": torch.ones(2)}, {"w": (2,)})
    >>> decode_weights(written, {"w": (2,)})
    {'w': tensor([1., 1.])}
    """
    return save(_to_arrays(values, shapes))


def decode_weights(payload: bytes, shapes: Shapes) -> Tensors:
    """Decode finite float32 tensors of exactly these names and shapes, or refuse them."""
    if len(payload) > largest_weights(shapes):
        raise WireError(Code.WEIGHTS)
    try:
        # safetensors checks the claimed sizes against the length before it copies anything.
        tensors = deserialize(payload)
    except (SafetensorError, ValueError, OverflowError):
        raise WireError(Code.WEIGHTS) from None
    described = {name: (info["dtype"], tuple(info["shape"])) for name, info in tensors}
    if described != {name: ("F32", tuple(shape)) for name, shape in shapes.items()}:
        raise WireError(Code.WEIGHTS)
    data = {name: info["data"] for name, info in tensors}
    return {name: _to_tensor(data[name], shape) for name, shape in shapes.items()}


def encode_values(values: Sequence[Mapping[str, Tensor]], shapes: Sequence[Shapes]) -> bytes:
    """Encode additional released values as raw floats; the plan defines names and shapes.

    >>> len(encode_values([{"count": torch.tensor(3.0)}], [{"count": ()}]))
    4
    """
    if len(values) != len(shapes):
        raise WireError(Code.WEIGHTS)
    parts = [_to_arrays(*pair).values() for pair in zip(values, shapes, strict=True)]
    return b"".join(array.tobytes() for part in parts for array in part)


def decode_values(payload: bytes, shapes: Sequence[Shapes]) -> list[Tensors]:
    """Decode the output of :func:`encode_values`."""
    if len(payload) != _SINGLE.itemsize * sum(map(count_values, shapes)):
        raise WireError(Code.WEIGHTS)
    rest, values = memoryview(payload), []
    for part in shapes:
        tensors = {}
        for name, shape in part.items():
            size = _SINGLE.itemsize * math.prod(shape)
            tensors[name], rest = _to_tensor(rest[:size], shape), rest[size:]
        values.append(tensors)
    return values


def encode_steps(values: Mapping[str, Tensor], shapes: Shapes, step: float) -> bytes:
    """Encode an update that was rounded to multiples of a step.

    The numbers of steps are zigzag-encoded (0, -1, 1, -2, ...), written as varints, and compressed
    by deflate with Huffman codes only.

    >>> update = {"w": torch.tensor([0.5, -0.25])}
    >>> written = encode_steps(update, {"w": (2,)}, 0.25)
    >>> decode_steps(written, {"w": (2,)}, 0.25)
    {'w': tensor([ 0.5000, -0.2500])}
    """
    arrays = _to_arrays(values, shapes)
    parts = [count_steps(torch.from_numpy(array), step).flatten() for array in arrays.values()]
    whole = torch.cat(parts).numpy().astype(np.int32)
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return compressor.compress(_to_bytes(whole)) + compressor.flush()


def decode_steps(payload: bytes, shapes: Shapes, step: float) -> Tensors:
    """Decode the output of :func:`encode_steps`, which must match the shapes exactly."""
    count = count_values(shapes)
    decompressor = zlib.decompressobj(-15)
    try:
        # One byte more than allowed, to detect payloads that are too long.
        raw = decompressor.decompress(payload, _MOST_BYTES * count + 1)
    except zlib.error:
        raise WireError(Code.WEIGHTS) from None
    if not decompressor.eof or decompressor.unused_data or decompressor.unconsumed_tail:
        raise WireError(Code.WEIGHTS)
    whole = torch.from_numpy(_from_bytes(np.frombuffer(raw, np.uint8), count))
    split = torch.split_with_sizes(
        whole.float().mul_(step), [math.prod(shape) for shape in shapes.values()]
    )
    # Copied, so that no tensor keeps the others in memory.
    return {
        name: part.reshape(shape).clone()
        for (name, shape), part in zip(shapes.items(), split, strict=True)
    }


def largest_steps(count: int) -> int:
    """Return an upper bound on the size of ``count`` encoded integers."""
    return 64 + _MOST_BYTES * count * 101 // 100


def _to_arrays(values: Mapping[str, Tensor], shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """Validate tensors, and return them as arrays in the order of the shapes."""
    if set(values) != set(shapes):
        raise WireError(Code.WEIGHTS)
    arrays = {}
    for name, shape in shapes.items():
        tensor = values[name].detach().cpu()
        fits = tensor.dtype == torch.float32 and tuple(tensor.shape) == tuple(shape)
        if not fits or not bool(torch.isfinite(tensor).all()):
            raise WireError(Code.WEIGHTS)
        arrays[name] = tensor.contiguous().numpy().astype(_SINGLE, copy=False)
    return arrays


def _to_tensor(data: bytes | memoryview, shape: Sequence[int]) -> Tensor:
    """Decode a tensor, and refuse values that are not finite."""
    tensor = torch.from_numpy(np.frombuffer(data, _SINGLE).astype(np.float32)).reshape(tuple(shape))
    if not bool(torch.isfinite(tensor).all()):
        raise WireError(Code.WEIGHTS)
    return tensor


def _to_bytes(whole: NDArray[np.int32]) -> bytes:
    """Encode integers as zigzag varints, with seven bits per byte."""
    zigzag = ((whole << 1) ^ (whole >> 31)).astype(np.uint32)
    if not zigzag.size or zigzag.max() < 0x80:
        return zigzag.astype(np.uint8).tobytes()
    shifts = 7 * np.arange(_MOST_BYTES, dtype=np.uint32)
    digits = zigzag[:, None] >> shifts
    used, more = (digits > 0) | (shifts == 0), digits >= 0x80
    return bytes(((digits & 0x7F) | more << 7)[used].astype(np.uint8))


def _from_bytes(raw: NDArray[np.uint8], count: int) -> NDArray[np.int32]:
    """Decode exactly ``count`` zigzag varints, each in its shortest form."""
    if not count and not len(raw):
        return np.zeros(0, np.int32)
    ends = np.flatnonzero(raw < 0x80)
    if len(ends) != count or ends[-1] != len(raw) - 1:
        raise WireError(Code.WEIGHTS)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    padded = (lengths > 1) & (raw[ends] == 0)
    if lengths.max() > _MOST_BYTES or padded.any():
        raise WireError(Code.WEIGHTS)
    zigzag = np.zeros(count, np.int32)
    for place in range(int(lengths.max())):
        longer = lengths > place
        zigzag[longer] |= (raw[starts[longer] + place] & 0x7F).astype(np.int32) << 7 * place
    whole = (zigzag >> 1) ^ -(zigzag & 1)
    if abs(whole).max() > LARGEST_WHOLE:
        raise WireError(Code.WEIGHTS)
    return whole
