"""Models by name, with weights from a seed."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pacdp.errors import InputError
from pacdp.models import plain, resnet
from pacdp.validation import meant, refuse_unknown

MODELS: dict[str, Callable[..., nn.Module]] = {
    "logistic": plain.logistic,
    "mlp": plain.mlp,
    "cnn": plain.cnn,
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "sequence": plain.sequence,
}


def build_model(
    name: str, *, shape: tuple[int, ...], classes: int, seed: int = 0, **settings: Any
) -> nn.Module:
    """Build a model for records of a shape; the same seed gives the same weights.

    ``classes`` = 0 means regression. The weights do not depend on torch's global random state,
    which is not changed.

    >>> first, second = (build_model("mlp", shape=(13,), classes=2, seed=1) for _ in range(2))
    >>> all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
    True
    """
    if name not in MODELS:
        near = meant(name, MODELS)
        raise InputError(f"model = {name!r}: unknown; {near}There are {', '.join(MODELS)}")
    if not isinstance(shape, tuple) or isinstance(classes, bool) or not isinstance(classes, int):
        raise InputError(
            f"model {name}: shape = {shape!r} must be a tuple and classes = {classes!r} a number"
        )
    if classes < 0 or classes == 1:
        raise InputError(f"model {name}: classes = {classes}: must be 0 (regression) or at least 2")
    parameters = inspect.signature(MODELS[name]).parameters.values()
    allowed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    refuse_unknown(f"model {name}", settings, allowed)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would load torch's compiler on its first call, which takes seconds.
        torch.default_generator.manual_seed(seed)
        return MODELS[name](shape, outputs_for(classes), **settings)


def outputs_for(classes: int) -> int:
    """Return the number of outputs: one for each class, or one for regression.

    >>> outputs_for(10), outputs_for(0)
    (10, 1)
    """
    return max(classes, 1)


def count_parameters(model: nn.Module) -> int:
    """Count the trainable parameters.

    >>> count_parameters(nn.Linear(13, 2))
    28
    """
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
