"""Models by name, with weights from a seed."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pacdp.errors import InputError
from pacdp.models import plain, resnet
from pacdp.validation import refuse_unknown, suggest

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
    """Build a model for records of a shape; the same seed gives the same weights.

    ``outputs`` is the number of classes, or 1 for regression. The weights do not depend on torch's
    global random state, which is not changed.

    >>> first, second = (build_model("mlp", shape=(13,), outputs=2, seed=1) for _ in range(2))
    >>> all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
    True
    """
    if name not in MODELS:
        near = suggest(name, MODELS)
        raise InputError(f"model = {name!r}: unknown; {near}There are {', '.join(MODELS)}")
    if not isinstance(shape, tuple) or isinstance(outputs, bool) or not isinstance(outputs, int):
        raise InputError(
            f"model {name}: shape = {shape!r} must be a tuple and outputs = {outputs!r} a number"
        )
    if outputs < 1:
        raise InputError(f"model {name}: outputs = {outputs}: must be at least 1")
    parameters = inspect.signature(MODELS[name]).parameters.values()
    allowed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    refuse_unknown(f"model {name}", settings, allowed)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would load torch's compiler on its first call, which takes seconds.
        torch.default_generator.manual_seed(seed)
        return MODELS[name](shape, outputs, **settings)


def count_parameters(model: nn.Module) -> int:
    """Count the trainable parameters.

    >>> count_parameters(nn.Linear(13, 2))
    28
    """
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
