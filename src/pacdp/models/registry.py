"""Registry of models by name; initial weights are drawn from a seed."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pacdp.errors import InputError
from pacdp.models import plain, resnet
from pacdp.plugins import find_object, import_object, is_path
from pacdp.validation import refuse_unknown, suggest

# Called with the shape of a record, the number of outputs, and settings as keywords.
ModelFactory = Callable[..., nn.Module]

MODELS: dict[str, ModelFactory] = {
    "logistic": plain.logistic,
    "mlp": plain.mlp,
    "cnn": plain.cnn,
    "resnet18": resnet.resnet18,
    "resnet34": resnet.resnet34,
    "sequence": plain.sequence,
}


def register_model(name: str) -> Callable[[ModelFactory], ModelFactory]:
    """Decorator that registers a model factory under a name."""

    def register(factory: ModelFactory) -> ModelFactory:
        MODELS[name] = factory
        return factory

    return register


def import_model(name: str) -> str:
    """Import the model factory ``module:name``, so that plans can refer to it; return the name."""
    if is_path(name):
        import_object("model.name", name)
    return name


def find_model(name: str) -> ModelFactory:
    """Return the factory of a registered model, or the imported one ``module:name``.

    >>> find_model("mlpp")
    Traceback (most recent call last):
    ...
    pacdp.errors.InputError: model = 'mlpp': unknown; did you mean mlp? There are logistic, ...
    """
    if name in MODELS:
        return MODELS[name]
    if not is_path(name):
        near = suggest(name, MODELS)
        raise InputError(f"model = {name!r}: unknown; {near}There are {', '.join(MODELS)}")
    factory: ModelFactory = find_object("model.name", name)
    return factory


def build_model(
    name: str, *, shape: tuple[int, ...], outputs: int, seed: int = 0, **settings: Any
) -> nn.Module:
    """Build a model for records of the given shape; the same seed gives the same weights.

    ``outputs`` is the number of classes, or 1 for regression. The weights do not depend on torch's
    global random state, which is not changed.

    >>> first, second = (build_model("mlp", shape=(13,), outputs=2, seed=1) for _ in range(2))
    >>> all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
    True
    """
    factory = find_model(name)
    if not isinstance(shape, tuple) or isinstance(outputs, bool) or not isinstance(outputs, int):
        raise InputError(
            f"model {name}: shape = {shape!r} must be a tuple and outputs = {outputs!r} a number"
        )
    if outputs < 1:
        raise InputError(f"model {name}: outputs = {outputs}: must be at least 1")
    # The first two parameters are the shape and the number of outputs.
    allowed = list(inspect.signature(factory).parameters)[2:]
    refuse_unknown(f"model {name}", settings, allowed)
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would load torch's compiler on its first call, which takes seconds.
        torch.default_generator.manual_seed(seed)
        return factory(shape, outputs, **settings)


def count_parameters(model: nn.Module) -> int:
    """Count the trainable parameters.

    >>> count_parameters(nn.Linear(13, 2))
    28
    """
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
