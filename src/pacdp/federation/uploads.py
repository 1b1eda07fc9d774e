"""Coarse uploads: rounding an update to a fraction of its own noise before it is sent.

The noise makes the low bits of an update worthless. Rounding what was released is post-processing,
so it costs no privacy, and it is part of the plan: every engine rounds in the same way, and a run
in one process equals one over a network.
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
"""The most steps that an update is sent with, in any coordinate; larger ones are clamped. It is a
quarter of a million standard deviations, and small enough for single precision to tell whole
numbers of steps apart."""
# A step of so few significant bits is the same on both sides, although mathematical libraries
# differ in the last bit, and costs 0.01 bits per coordinate.
_BITS = 8
# Multiples of a step outside of these limits need not be ordinary numbers in single precision.
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
    client was asked, by default the first one, and ``released`` what the client released beside its
    update. Both ends know all of it.
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
    """Return the step to whose multiples a client rounds its update; None where it does not.

    It is a quarter of :func:`upload_noise`, and public. Updates are sent as they are if the plan
    says so, if they are no linear function of the noise (a client's Adam), and for methods whose
    noise is not public.

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
    """Return about how many bytes an update of so many values takes, as far as the plan tells.

    A coarse update is counted as noise alone: one that its noise does not hide takes more.
    """
    if plan.training.upload == "exact":
        return 4 * values
    # Bounds that depend on further released values are those of no news.
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
    """Return the step for noise of one σ; None where single precision is not enough for it.

    >>> coarse_step(1.0)
    0.25
    """
    step = float(coarse_steps(np.array(noise)))
    return step if _SMALLEST < step < _LARGEST else None


def coarsen(values: Tensor, step: float | Tensor) -> Tensor:
    """Round to multiples of a step, half to even; what is not finite stays as it is.

    >>> coarsen(torch.tensor([0.3, -0.1, torch.inf]), 0.25).tolist()
    [0.25, 0.0, inf]
    """
    # Adding zero turns -0 into 0, which a whole number cannot tell apart.
    rounded = count_steps(values, step).mul_(step).add_(0.0)
    return torch.where(torch.isfinite(values), rounded, values)


def count_steps(values: Tensor, step: float | Tensor) -> Tensor:
    """Return how many steps values are, as rounded floating-point numbers.

    >>> count_steps(torch.tensor([0.5, -0.25]), 0.25).tolist()
    [2.0, -1.0]
    """
    return (values / step).round_().clamp_(-LARGEST_WHOLE, LARGEST_WHOLE)


def coarsen_update(update: Tensors, step: float | None) -> Tensors:
    """Round a whole update; without a step it stays as it is."""
    if step is None:
        return update
    return {name: coarsen(value, step) for name, value in update.items()}


def compressed_size(values: int, ratio: float) -> int:
    """Return about how many bytes noise of σ = ``ratio`` steps takes in so many coordinates.

    >>> compressed_size(28, 4.0), compressed_size(7850, 4.0)
    (33, 4053)
    """
    entropy = math.log2(ratio * math.sqrt(2 * math.pi * math.e))
    # Huffman codes take 1.25 % more than the entropy, and their table about 32 bytes. Few bytes are
    # stored as they are.
    return min(values + 5, math.ceil(1.0125 * values * entropy / 8) + 32)
