"""A model by its name, with weights from a seed."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pacdp.errors import InputError
from pacdp.models import plain, resnet
from pacdp.validation import meant

MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": plain.logistic,
    "mlp": plain.mlp,
    "cnn": plain.cnn,
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "sequence": plain.sequence,
}


def build_model(
    name: str, *, shape: tuple[int, ...], outputs: int, seed: int = 0, **settings: Any
) -> nn.Module:
    """The model ``name`` for records of ``shape``; the same seed gives the same weights.

    ``outputs`` is one for each class, or 1 for regression. The weights are drawn apart from torch's
    own random state, which is left as it was.

    >>> first, second = (build_model("mlp", shape=(13,), outputs=2, seed=1) for _ in range(2))
    >>> all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
    True
    """
    if name not in MODELS:
        near = meant(name, MODELS)
        raise InputError(f"model = {name!r}: unknown; {near}There are {', '.join(MODELS)}")
    if not isinstance(shape, tuple) or isinstance(outputs, bool) or not isinstance(outputs, int):
        raise InputError(
            f"model {name}: shape = {shape!r} must be a tuple and outputs = {outputs!r} a number"
        )
    if outputs < 1:
        raise InputError(f"model {name}: outputs = {outputs}: must be at least 1")
    make = MODELS[name]
    allowed = [
        p.name for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    unknown = [setting for setting in settings if setting not in allowed]
    if unknown:
        raise InputError(
            f"model {name}: has no setting {unknown[0]}; {meant(unknown[0], allowed)}there are "
            f"{', '.join(allowed) or 'none'}"
        )
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, whose first call loads torch's compiler, for a second or two.
        torch.default_generator.manual_seed(seed)
        return make(shape, outputs, **settings)


def count_parameters(model: nn.Module) -> int:
    """The number of trained parameters, d.

    >>> count_parameters(nn.Linear(13, 2))
    28
    """
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
