"""Checks of a broadcast that come before anything is paid. They depend on public things only."""

from collections.abc import Mapping

import torch
from torch import Tensor

from pacdp.federation import LocalModel
from pacdp.federation.messages import Broadcast
from pacdp.site.codec import Code, WireError


def check_broadcast(broadcast: Broadcast, local_model: LocalModel, client: int) -> None:
    """Refuse a broadcast that this client does not answer, with the code that says why."""
    plan, number = local_model.plan, broadcast.round
    if type(number) is not int or not 0 <= number < plan.rounds:
        raise WireError(Code.ROUND)
    if client not in plan.participants(number):
        raise WireError(Code.PARTICIPANT)
    if not _has_form(broadcast.model, local_model.parameters):
        raise WireError(Code.WEIGHTS)
    state, method = broadcast.shared_state, plan.algorithm
    if not isinstance(state, Mapping) or set(state) != set(method.initial_state(len(plan.clients))):
        raise WireError(Code.STATE)
    try:
        method.check_state(state, client)
    except Exception:
        # A method may fail in any way if its state is not what it expects.
        raise WireError(Code.STATE) from None


def _has_form(model: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    """Whether weights have the expected names, shapes and types, and are finite."""
    if not isinstance(model, Mapping) or set(model) != set(expected):
        return False
    return all(
        isinstance(model[name], Tensor)
        and model[name].layout is torch.strided
        and not model[name].is_meta
        and model[name].dtype == parameter.dtype
        and model[name].shape == parameter.shape
        and bool(torch.isfinite(model[name]).all())
        for name, parameter in expected.items()
    )
