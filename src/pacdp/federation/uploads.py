"""Coarse uploads: rounding an update to a fraction of its noise before it is sent.

The noise drowns the low-order bits of an update. Rounding a released value is post-processing and
costs no privacy. It is part of the plan: every engine rounds in the same way, so that a run in one
process equals one over a network.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from pacdp.federation.optimizers import update_gains
from pacdp.federation.plan import Plan
from pacdp.methods import SharedState, UploadTerms
from pacdp.validation import FloatArray

Tensors = dict[str, Tensor]

STEPS_PER_SIGMA = 4
"""Steps per standard deviation of the noise: rounding adds 1/(12·4²) = 0.5 % to its variance."""
LARGEST_WHOLE = 2**20 - 1
"""The largest number of steps in any coordinate of an update; larger values are clamped. This is a
quarter of a million standard deviations, and small enough for exact integers in single
precision."""
# Significant bits of a step: so few that both sides compute the same step although mathematical
# libraries differ in the last bit. This costs 0.01 bits per coordinate.
_BITS = 8
# Outside of these limits, multiples of a step may overflow or be subnormal in single precision.
_SMALLEST, _LARGEST = 2.0**-100, 2.0**100


def upload_noise(
    plan: Plan,
    client: int,
    round: int,  # noqa: A002
    *,
    scale: float = 1.0,
    shared_state: SharedState | None = None,
    released: Sequence[Mapping[str, Tensor]] = (),
) -> float | None:
    """Return σ of the noise in each coordinate of a client's update; None where it is not public.

    ``scale`` is the noise relative to even spending, ``shared_state`` the method's state when the
    client was asked (default: the initial one), and ``released`` the values that the client
    released in addition to its update. Both sides know all of them.
    """
    method, client_plan = plan.algorithm, plan.clients[client]
    if shared_state is None:
        shared_state = method.initial_state(len(plan.clients))
    return method.upload_noise(
        UploadTerms(
            client_id=client,
            client_plan=client_plan,
            round=round,
            rounds=plan.rounds,
            scale=scale,
            gains=update_gains(plan.training.optimiser, client_plan.steps),
            shared_state=shared_state,
            released=released,
        )
    )


def upload_step(
    plan: Plan,
    client: int,
    round: int,  # noqa: A002
    *,
    scale: float = 1.0,
    shared_state: SharedState | None = None,
    released: Sequence[Mapping[str, Tensor]] = (),
) -> float | None:
    """Return the step to whose multiples a client rounds its update; None if it does not.

    It is a quarter of :func:`upload_noise`, and public. Updates are not rounded if the plan says
    so, if they are not linear in the noise (Adam on the client), or if the method's noise is not
    public.

    >>> from pacdp.federation import Population, Recipe, Training, make_plan
    >>> from pacdp.methods import build_method
    >>> from pacdp.tasks import Classification
    >>> plan = make_plan(
    ...     Recipe(training=Training(rounds=10, local_steps=4, upload="coarse")),
    ...     build_method("fixed"),
    ...     Population(sizes={"north": 200}, shape=(13,), task=Classification(2)),
    ... )
    >>> round(upload_noise(plan, 0, 0), 5), round(upload_step(plan, 0, 0), 5)
    (0.02359, 0.00589)
    """
    if plan.training.upload == "exact":
        return None
    noise = upload_noise(
        *(plan, client, round), scale=scale, shared_state=shared_state, released=released
    )
    return None if noise is None else coarse_step(noise)


def planned_size(plan: Plan, client: int, values: int, round: int = 0) -> int:  # noqa: A002
    """Estimate the size in bytes of an update with this many values from the plan.

    A coarse update is treated as pure noise; one that is large compared with its noise takes more.
    """
    if plan.training.upload == "exact":
        return 4 * values
    # Bounds that depend on other released values are computed as if these were zero.
    released = [
        {name: torch.zeros(shape) for name, shape in part.items()}
        for part in plan.algorithm.further_releases(plan.clients[client])
    ]
    noise = upload_noise(plan, client, round, released=released)
    step = upload_step(plan, client, round, released=released)
    if noise is None or step is None:
        return 4 * values
    return compressed_size(values, noise / step)


def coarse_steps(noise: FloatArray) -> FloatArray:
    """Return the steps to which updates with noise of these σ are rounded: σ/4, rounded down.

    >>> coarse_steps(np.array([1.0, 0.3])).tolist()
    [0.25, 0.07470703125]
    """
    mantissa, exponent = np.frexp(noise / STEPS_PER_SIGMA)
    return np.asarray(np.ldexp(np.floor(mantissa * 2**_BITS), exponent - _BITS))


def coarse_step(noise: float) -> float | None:
    """Return the step for noise of one σ; None if single precision cannot represent it.

    >>> coarse_step(1.0)
    0.25
    """
    step = float(coarse_steps(np.array(noise)))
    return step if _SMALLEST < step < _LARGEST else None


def coarsen(values: Tensor, step: float | Tensor) -> Tensor:
    """Round to multiples of a step, half to even; values that are not finite stay unchanged.

    >>> coarsen(torch.tensor([0.3, -0.1, torch.inf]), 0.25).tolist()
    [0.25, 0.0, inf]
    """
    # Adding zero turns -0 into 0, because an integer has no negative zero.
    rounded = count_steps(values, step).mul_(step).add_(0.0)
    return torch.where(torch.isfinite(values), rounded, values)


def count_steps(values: Tensor, step: float | Tensor) -> Tensor:
    """Return values as numbers of steps, rounded to integers but still floating-point.

    >>> count_steps(torch.tensor([0.5, -0.25]), 0.25).tolist()
    [2.0, -1.0]
    """
    return (values / step).round_().clamp_(-LARGEST_WHOLE, LARGEST_WHOLE)


def coarsen_update(update: Tensors, step: float | None) -> Tensors:
    """Round a whole update; without a step it stays unchanged."""
    if step is None:
        return update
    return {name: coarsen(value, step) for name, value in update.items()}


def compressed_size(values: int, ratio: float) -> int:
    """Estimate the bytes of noise with σ = ``ratio`` steps in this many coordinates.

    >>> compressed_size(28, 4.0), compressed_size(7850, 4.0)
    (33, 4053)
    """
    entropy = math.log2(ratio * math.sqrt(2 * math.pi * math.e))
    # Huffman codes take 1.25 % more than the entropy, and their table about 32 bytes. Short
    # payloads are stored uncompressed.
    return min(values + 5, math.ceil(1.0125 * values * entropy / 8) + 32)
