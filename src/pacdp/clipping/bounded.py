"""Values that carry their own sensitivity, and their release with noise.

Scaling noise by another bound than the one used for clipping is a classic way to lose a guarantee.
Here a clipped value states how far one record can move it, and :func:`release` uses nothing else.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from pacdp.clipping.noise import NoiseSource
from pacdp.clipping.numerics import (
    add_on_grid,
    check_clipping_bound,
    check_noise,
    clip_factors,
    grid_step,
    shrink_bound,
    squared_norms,
    zero_nonfinite,
)
from pacdp.errors import InputError
from pacdp.privacy import Adjacency, LevelTerms, Release
from pacdp.validation import require_positive_number

Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """Tensors of a client that one unit moves by at most ``sensitivity``, all together, in L2.

    That holds for the values as they are released, rounded to the public grid of that sensitivity
    (:func:`pacdp.clipping.numerics.grid_step`), in the arithmetic that computed them. ``bound`` is
    C, the unit of the sensitivity; ``adjacency`` says which data sets are compared; ``unit`` is one
    record, or everything that belongs to one patient, say. The values have no noise yet, so they
    may not leave the client.
    """

    values: Tensors
    bound: float
    sensitivity: float
    adjacency: Adjacency
    unit: str = "record"
    levels: tuple[float, ...] = ()
    """C_j/C where examples have bounds of their own: one of level j moves the values by at most
    the sensitivity times that."""

    @property
    def smallest_sensitivity(self) -> float:
        """The smallest sensitivity of any level, for which the grid is made."""
        return self.sensitivity * _smallest_ratio(self.levels) if self.levels else self.sensitivity

    def event(self, z: float) -> Release:
        """Return what to debit for a release of this value with noise z times its sensitivity.

        >>> value = clip_upload({"w": torch.ones(4)}, bound=1.0, adjacency=Adjacency.ZERO_OUT)
        >>> value.event(z=3.0).noise_multiplier
        6.0
        """
        relative = self.sensitivity / self.bound
        return _describe_release(
            require_positive_number("z", z), relative, self.adjacency, self.unit, self.levels
        )


@lru_cache(maxsize=256)
def _smallest_ratio(levels: tuple[float, ...]) -> float:
    return min(ratio for ratio in levels if ratio)


# Every step of a participation makes the same release, and validating it again takes longer.
@lru_cache(maxsize=256)
def _describe_release(
    z: float, sensitivity: float, adjacency: Adjacency, unit: str, levels: tuple[float, ...]
) -> Release:
    return Release(
        noise_multiplier=z * sensitivity,
        sensitivity=sensitivity,
        adjacency=adjacency,
        unit=unit,
        levels=tuple(LevelTerms(ratio) for ratio in levels),
    )


@dataclass(frozen=True, kw_only=True)
class ClippedSum(Bounded):
    """A sum over examples clipped to ``bound``: S = C under zero-out, 2C under replace-one."""


# How many numbers get their noise at once: as many as fit into a core's own cache.
LARGEST_CHUNK = 2**17


def release(value: Bounded, *, z: float, divisor: float, noise: NoiseSource) -> dict[str, Tensor]:
    """Add Gaussian noise of z times the sensitivity, and divide by a public divisor.

    The value is rounded to a public grid and the noise, rounded to the same grid, is added exactly:
    the low bits reveal nothing about the value. Debit ``value.event(z)`` first. The value is used
    up: its tensors are removed from it, so that no clean copy is left behind.

    >>> from pacdp.clipping import SimulatedNoise
    >>> value = clip_upload({"w": torch.zeros(2)}, bound=1.0, adjacency=Adjacency.ZERO_OUT)
    >>> noise = SimulatedNoise(seed=0, client=0, round=0)
    >>> release(value, z=3.0, divisor=10, noise=noise)["w"].shape
    torch.Size([2])
    """
    divisor = require_positive_number("divisor", divisor)
    if not value.values:
        raise InputError("value: is used up, it has been released before")
    coordinates = sum(tensor.numel() for tensor in value.values.values())
    smallest_sensitivity = value.smallest_sensitivity
    check_noise(z * value.sensitivity / smallest_sensitivity, coordinates)
    step = grid_step(smallest_sensitivity, coordinates)
    scale = noise_scale(z, value.sensitivity, step)
    released: dict[str, Tensor] = {}
    while value.values:
        group = _take_group(value.values)
        parts = [tensor.flatten() for tensor in group.values()]
        # The value is consumed anyway, so a single tensor needs no copy.
        flat = parts[0] if len(parts) == 1 else torch.cat(parts)
        noised = _add_noise(flat, noise, scale, step=step, divisor=divisor)
        split = torch.split_with_sizes(noised, [part.numel() for part in parts])
        for (name, tensor), part in zip(group.items(), split, strict=True):
            released[name] = part.view(tensor.shape)
    return released


def noise_scale(z: float, sensitivity: float, step: float) -> float:
    """Compute σ in grid steps for noise of z times the sensitivity, never rounded down."""
    return math.nextafter(z * sensitivity, math.inf) / step


def _add_noise(
    flat: Tensor, noise: NoiseSource, scale: float, *, step: float, divisor: float
) -> Tensor:
    """Add noise chunk by chunk, in place where possible."""
    size = flat.numel()
    if size <= LARGEST_CHUNK:
        return add_on_grid(flat, noise.integers(size, scale), step=step, divisor=divisor)
    noised = flat if flat.dtype == torch.float32 else torch.empty_like(flat, dtype=torch.float32)
    for start in range(0, size, LARGEST_CHUNK):
        part = flat[start : start + LARGEST_CHUNK]
        draws = noise.integers(part.numel(), scale)
        result = add_on_grid(part, draws, step=step, divisor=divisor)
        if result.data_ptr() != part.data_ptr():
            noised[start : start + LARGEST_CHUNK] = result
    return noised


def _take_group(values: Tensors) -> Tensors:
    """Remove and return the first tensors, as many as get their noise at once."""
    group: Tensors = {}
    size = 0
    for name in list(values):
        size += values[name].numel()
        if group and size > LARGEST_CHUNK:
            break
        group[name] = values.pop(name)
    return group


def clip_upload(
    values: Tensors, *, bound: float, adjacency: Adjacency, unit: str = "record"
) -> Bounded:
    """Clip a client's whole update to ``bound``.

    One record, or one unit, can turn it from any vector of that norm into any other, so S = 2C
    for either adjacency.

    >>> value = clip_upload({"w": torch.tensor([3.0, 4.0])}, bound=1.0, adjacency="zero-out")
    >>> value.sensitivity, [round(x, 3) for x in value.values["w"].tolist()]
    (2.0, [0.597, 0.796])
    """
    bound = check_clipping_bound("bound", bound)
    squares = [squared_norms(tensor.float().reshape(-1)) for tensor in values.values()]
    # The same operations whether or not the update is finite; if not, it counts as zero.
    length = shrink_bound(bound, 1)
    factor = clip_factors(torch.stack(squares).sum().sqrt_(), length)
    clipped = {name: zero_nonfinite(tensor.float() * factor) for name, tensor in values.items()}
    return Bounded(
        values=clipped,
        bound=bound,
        sensitivity=2 * bound,
        adjacency=Adjacency.parse(adjacency),
        unit=unit,
    )


def centred_count(flags: Tensor, *, adjacency: Adjacency, unit: str = "record") -> Bounded:
    """Compute Σ (flag − ½) over examples: a count of flags, centred to halve its sensitivity.

    A null record counts 0, so S = ½ under zero-out; swapping a record moves it by 1.

    >>> centred_count(torch.tensor([True, True, False]), adjacency="zero-out").sensitivity
    0.5
    """
    if flags.dtype != torch.bool or flags.ndim != 1:
        raise InputError(f"flags: is {flags.dtype} of {flags.ndim} dimensions, must be 1-d bool")
    adjacency = Adjacency.parse(adjacency)
    # Exact in double precision, and a multiple of every grid step for this sensitivity.
    total = (flags.double() - 0.5).sum()
    return Bounded(
        values={"count": total},
        bound=0.5,
        sensitivity=0.5 * adjacency.sensitivity,
        adjacency=adjacency,
        unit=unit,
    )
