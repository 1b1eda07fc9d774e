"""Values that carry their own sensitivity, and the one place where noise is added to them.

Noise scaled by a bound other than the one that clipped is a classic way to lose a guarantee. Here
the value that was clipped says itself how far one record can have moved it, and :func:`release`
asks nobody else.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pacdp.checks import positive_number
from pacdp.clipping.contributions import SMALLEST_SQUARE
from pacdp.clipping.noise import NoiseSource
from pacdp.errors import InputError
from pacdp.privacy import Adjacency, Release

Tensors = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """Tensors of a client that one unit moves by at most ``sensitivity``, all together, in L2.

    ``bound`` is C, what the sensitivity is measured in; ``adjacency`` is what "moves" means.
    Nothing here has noise yet, so nothing here may leave the client.
    """

    values: Tensors
    bound: float
    sensitivity: float
    adjacency: Adjacency
    unit: str = "record"
    """What moves them by at most that: one record, or all that belongs to one of these."""

    def event(self, z: float) -> Release:
        """What is debited for a release of this value with noise z times its sensitivity.

        >>> value = clip_upload({"w": torch.ones(4)}, bound=1.0, adjacency=Adjacency.ZERO_OUT)
        >>> value.event(z=3.0).noise_multiplier
        6.0
        """
        relative = self.sensitivity / self.bound
        return Release(
            noise_multiplier=positive_number("z", z) * relative,
            sensitivity=relative,
            adjacency=self.adjacency,
            unit=self.unit,
        )


@dataclass(frozen=True, kw_only=True)
class ClippedSum(Bounded):
    """A sum over examples, each clipped to ``bound``: S = C under zero-out, 2C under replace-one.

    ``not_finite`` counts examples whose gradient was NaN or infinite; they contributed zero. The
    count is for the client's eyes only: it was not paid for.
    """

    not_finite: int = 0


# Smaller noise would be rounded away near the end of single precision, and leave the value bare.
SMALLEST_SIGMA = 1e-30


def release(value: Bounded, *, z: float, divisor: float, noise: NoiseSource) -> dict[str, Tensor]:
    """The value with Gaussian noise of z times its sensitivity, over a public divisor.

    Nothing else in this package adds noise, but its like for many models at once,
    :func:`~pacdp.clipping.release_stacked`. Debit ``value.event(z)`` first. The value is used
    up: its tensors are taken out of it one by one, so that no clean copy is left behind.

    >>> from pacdp.clipping import SimulatedNoise
    >>> value = clip_upload({"w": torch.zeros(2)}, bound=1.0, adjacency=Adjacency.ZERO_OUT)
    >>> noise = SimulatedNoise(seed=0, client=0, round=0, step=0)
    >>> release(value, z=3.0, divisor=10, noise=noise)["w"].shape
    torch.Size([2])
    """
    scale = 1 / positive_number("divisor", divisor)
    sigma = positive_number("z", z) * value.sensitivity * scale
    if not value.values:
        raise InputError("value: is used up, it has been released before")
    refuse_lost(sigma)
    released = {}
    for name in list(value.values):
        clean = value.values.pop(name)
        released[name] = noised(clean, sigma=sigma, scale=scale, noise=noise)
    return released


def noised(clean: Tensor, *, sigma: float, scale: float, noise: NoiseSource) -> Tensor:
    """N(0, σ²) plus the scaled value. Whoever calls this has made σ from its sensitivity."""
    return noise.normal(clean, sigma).add_(clean, alpha=scale)


def refuse_lost(sigma: float) -> None:
    """Refuse noise so small that rounding would leave the value bare."""
    if sigma < SMALLEST_SIGMA:
        raise InputError(
            f"noise of {sigma:.3g}: is lost in single precision; the bound must be larger"
        )


def clip_upload(
    values: Tensors, *, bound: float, adjacency: Adjacency, unit: str = "record"
) -> Bounded:
    """A client's whole update clipped to ``bound``.

    One record, or one unit, can turn it from any vector of that norm into any other, so S = 2C
    whatever the adjacency.

    >>> value = clip_upload({"w": torch.tensor([3.0, 4.0])}, bound=1.0, adjacency="zero-out")
    >>> value.sensitivity, [round(x, 3) for x in value.values["w"].tolist()]
    (2.0, [0.6, 0.8])
    """
    bound = positive_number("bound", bound)
    norm = torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(value.double()) for value in values.values()])
    )
    if not torch.isfinite(norm):
        clipped = {name: torch.zeros_like(v, dtype=torch.float32) for name, v in values.items()}
    else:
        factor = float(clip_factors(norm.square(), bound))
        clipped = {name: value.float() * factor for name, value in values.items()}
    return Bounded(
        values=clipped,
        bound=bound,
        sensitivity=2 * bound,
        adjacency=Adjacency.parse(adjacency),
        unit=unit,
    )


def centred_count(flags: Tensor, *, adjacency: Adjacency, unit: str = "record") -> Bounded:
    """Σ (flag − ½) over examples: how many flags are set, centred so that it costs half as much.

    A null record counts 0, so S = ½ under zero-out; swapping a record moves it by 1.

    >>> centred_count(torch.tensor([True, True, False]), adjacency="zero-out").sensitivity
    0.5
    """
    if flags.dtype != torch.bool or flags.ndim != 1:
        raise InputError(f"flags: is {flags.dtype} of {flags.ndim} dimensions, must be 1-d bool")
    adjacency = Adjacency.parse(adjacency)
    total = (flags.float() - 0.5).sum()
    half = 0.5
    return Bounded(
        values={"count": total},
        bound=half,
        sensitivity=half * adjacency.sensitivity,
        adjacency=adjacency,
        unit=unit,
    )


# Norms are sums in single precision; by this much they may be short of the truth.
ROUNDING = 1e-5


def clip_factors(squares: Tensor, bound: float | Tensor) -> Tensor:
    """min(1, C/‖g‖) for each squared norm, with rounding on the safe side.

    >>> clip_factors(torch.tensor([0.0, 0.25, 4.0]), 1.0).tolist()
    [1.0, 1.0, 0.49999...]
    """
    # Smaller squares have vanished in single precision: smaller norms are not to be believed.
    inverse = squares.clamp(min=SMALLEST_SQUARE).rsqrt_()
    return inverse.mul_(bound * (1 - ROUNDING)).clamp_(max=1)
