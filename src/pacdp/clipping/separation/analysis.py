"""Decides whether a model treats the examples of a batch separately."""

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks

from pacdp.clipping.recurrent import RECURRENT
from pacdp.clipping.separation.calls import LayerCall, SeparationError
from pacdp.clipping.separation.layers import ATTENTION, FORWARDS, LAYERS, check_layer
from pacdp.clipping.separation.state import ModelState
from pacdp.clipping.separation.tracing import Tracer, module_tensors
from pacdp.clipping.sequential import is_modified
from pacdp.errors import first_line

# Candidates for the number of examples: primes, which products of other sizes cannot equal.
_SIZES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069)


def find_mixing(module: nn.Module, inputs: tuple[Tensor, ...]) -> str | None:
    """Say why examples of a batch might influence each other; None if they provably cannot.

    Only the shapes and dtypes of ``inputs`` matter; their first dimension is the batch. The answer
    holds for the module's current mode, training or evaluation, and its current layers and hooks.
    The module itself is neither changed nor run; a copy of it is.

    A trained parameter that book-keeping could not follow is also a reason: one used outside of its
    own layer, or in a layer whose input does not have the examples first.

    >>> find_mixing(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), (torch.zeros(2, 4),)) is None
    True
    >>> class Centred(nn.Linear):
    ...     def forward(self, x):
    ...         return x - x.mean(0)
    >>> find_mixing(Centred(4, 4), (torch.zeros(2, 4),))
    'function mean over dimension 0 mixes the examples of a batch (...)'
    """
    try:
        _refuse_unusual(module, inputs)
        if _is_known_sequence(module, inputs):
            return None
        tensors = (*inputs, *module.parameters(), *module.buffers())
        used = {size for tensor in tensors for size in tensor.shape}
        sizes = [size for size in _SIZES if size not in used][:2]
        if len(sizes) < 2:
            raise SeparationError("the model has too many different sizes")
        first, second = (_trace(module, inputs, size) for size in sizes)
        if first != second:
            raise SeparationError("what the model does depends on the number of examples")
    except Exception as error:
        return _describe_error(error)
    return None


def _refuse_unusual(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Refuse anything that makes calling the model differ from calling its forward."""
    if any(type(tensor) is not Tensor or not tensor.ndim for tensor in inputs):
        raise SeparationError("an input is not a plain tensor with examples as its first dimension")
    for tensor in (*module.parameters(), *module.buffers()):
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            raise SeparationError(f"a parameter or buffer is of type {type(tensor).__name__}")
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(torch_module, f"_global{name}", None) for name in hooks):
        raise SeparationError("hooks are registered for all modules")
    for name, layer in module.named_modules():
        kind = type(layer)
        if (
            is_modified(layer)
            or any(callable(getattr(kind, attribute, None)) for attribute in vars(layer))
            or kind.forward is not FORWARDS.get(kind, kind.forward)
            or getattr(layer, "_compiled_call_impl", None) is not None
            or (kind.__call__, kind._call_impl) != (nn.Module.__call__, nn.Module._call_impl)
            or isinstance(layer, torch.jit.ScriptModule)
        ):
            raise SeparationError(
                f"layer {name or '(the model)'} ({kind.__name__}): has hooks, or a method or a "
                "way of being called of its own"
            )


def _is_known_sequence(module: nn.Module, inputs: tuple[Tensor, ...]) -> bool:
    """Whether the module is a plain sequence of known layers; refuses one that mixes examples.

    Their rules only ask for numbers of dimensions, so nothing has to be run.
    """
    layers = list(_sequence("", module))
    if len(inputs) != 1 or any(type(layer) not in LAYERS for _, layer in layers):
        return False
    changes = [_added_dimensions(layer) for _, layer in layers]
    if None in changes:
        return False
    dimensions = inputs[0].ndim
    for (name, layer), added in zip(layers, changes, strict=True):
        example = torch.empty((1,) * dimensions)
        arguments = {"input": example}
        check_layer(LayerCall(name or "(the model)", (), arguments, [(example, 0)], layer))
        dimensions += added(dimensions) if callable(added) else added or 0
    return True


def _sequence(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for child_name, layer in module._modules.items():
        if layer is not None:
            yield from _sequence(f"{name}.{child_name}" if name else child_name, layer)


def _added_dimensions(layer: nn.Module) -> Callable[[int], int] | int | None:
    """Say how many more dimensions the result has than the input; None if that is not known."""
    if isinstance(layer, nn.Flatten):
        start, end = layer.start_dim, layer.end_dim
        return lambda dimensions: start % dimensions - end % dimensions
    if isinstance(layer, nn.Unflatten):
        return len(layer.unflattened_size) - 1
    if isinstance(layer, nn.Embedding):
        return 1
    unknown = (*RECURRENT, nn.Bilinear, nn.Fold, nn.Unfold, *ATTENTION)
    return None if getattr(layer, "return_indices", False) or isinstance(layer, unknown) else 0


def _trace(module: nn.Module, inputs: tuple[Tensor, ...], size: int) -> list[Any]:
    """Run a copy of the module on ``size`` examples without values, and return what it did."""
    model = _copy_without_values(module)
    tracer = Tracer(model, inputs[0].device if inputs else torch.device("cpu"), size)
    state = ModelState(model)
    examples = [
        torch.empty((size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
        for tensor in inputs
    ]
    for example in examples:
        tracer.examples[id(example)] = example, 0
    python, numpy = random.getstate(), np.random.get_state()
    with (
        torch.random.fork_rng(devices=_initialized_devices()),
        torch.enable_grad(),
        disable_saved_tensors_hooks("the model changes what is kept for the backward pass"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        before = torch.default_generator.get_state()
        try:
            with tracer.guard, tracer:
                outputs = model(*examples)
        except Exception as error:
            # The model's own code may have caught the first error and raised another.
            raise SeparationError(tracer.reason or _describe_error(error)) from error
        finally:
            random_numbers_drawn = not (
                torch.equal(before, torch.default_generator.get_state())
                and random.getstate() == python
                and all(map(np.array_equal, np.random.get_state(), numpy))
            )
            random.setstate(python)
            np.random.set_state(numpy)
    if tracer.reason:
        raise SeparationError(tracer.reason)
    if random_numbers_drawn:
        raise SeparationError("the model draws random numbers outside of torch's layers")
    if state.changed():
        raise SeparationError("the forward pass writes a buffer, an attribute or a variable")
    tracer.check_outputs(outputs)
    return tracer.log


def _describe_error(error: Exception) -> str:
    """Say in one line why a model could not be traced."""
    if isinstance(error, SeparationError):
        return str(error)
    name = type(error).__name__
    return f"the model cannot be followed without values ({name}: {first_line(error)})"


def _initialized_devices() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


def _copy_without_values(module: nn.Module) -> nn.Module:
    """Copy a module to tensors that have shapes but no values."""
    memo: dict[int, Any] = {}
    for tensor in module_tensors(module):
        empty = torch.empty_like(tensor.detach(), device="meta")
        memo[id(tensor)] = (
            nn.Parameter(empty, requires_grad=tensor.requires_grad)
            if isinstance(tensor, nn.Parameter)
            else empty.requires_grad_(tensor.requires_grad)
        )
    try:
        model = copy.deepcopy(module, memo)
    except Exception as error:
        name = type(error).__name__
        raise SeparationError(f"the model cannot be copied ({name}: {str(error)[:80]})") from error
    kinds, expected = (
        [(name, type(layer)) for name, layer in m.named_modules()] for m in (model, module)
    )
    if kinds != expected:
        raise SeparationError("a copy of the model is not the same model")
    if {id(layer) for layer in model.modules()} & {id(layer) for layer in module.modules()}:
        raise SeparationError("a copy of the model shares layers with it")
    return model
