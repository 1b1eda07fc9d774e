"""Whether the examples of a batch can influence each other in a model.

Book-keeping runs a whole batch through the model at once, which is private only if no example
influences another's outputs. A numerical test could miss that, so it is proved instead: a copy of
the model runs on tensors that have shapes but no values (torch's meta device), and every torch
function and layer that it calls is looked up in tables of those known to treat examples separately
(``separation_functions``, ``separation_layers``). If anything is not in the tables, gradients are
computed one example at a time.

The copy takes the same path as the model will: there are no values to branch on, any use of the
number of examples other than as a size is refused, and so are random numbers drawn outside of
torch's layers, and forward passes that write attributes, buffers or variables. Two runs with
different numbers of examples must call the same functions with the same arguments. Not covered is
code that keeps state elsewhere, such as in a file or in an attribute of another Python module.
"""

import copy
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np
import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from pacdp.clipping.recurrent import RECURRENT
from pacdp.clipping.separation_functions import (
    FILLED,
    FUNCTIONS,
    SIZED,
    BatchSize,
    Call,
    SeparationError,
    anything,
    leaves,
)
from pacdp.clipping.separation_layers import ATTENTION, FORWARDS, LAYERS, LayerCall, check_layer
from pacdp.clipping.sequential import altered

# Candidates for the number of examples: primes, which products of other sizes cannot equal.
_SIZES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069)


def find_mixing(module: nn.Module, inputs: tuple[Tensor, ...]) -> str | None:
    """Why examples of a batch might influence each other; None if they provably cannot.

    ``inputs`` are examples of which only shapes and dtypes matter; the first dimension of each is
    the batch. The answer holds for the module's current mode, training or evaluation, and its
    current layers and hooks. The module is not changed and not run; a copy of it is.

    Another reason is a trained parameter that book-keeping could not follow: one used outside of
    its own layer, or in a layer whose input does not have the examples first.

    >>> find_mixing(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), (torch.zeros(2, 4),)) is None
    True
    >>> class Centred(nn.Linear):
    ...     def forward(self, x):
    ...         return x - x.mean(0)
    >>> find_mixing(Centred(4, 4), (torch.zeros(2, 4),))
    'function mean over dimension 0 mixes the examples of a batch (...)'
    """
    try:
        _refuse_strange(module, inputs)
        if _is_known_sequence(module, inputs):
            return None
        taken = {
            size
            for tensor in (*inputs, *module.parameters(), *module.buffers())
            for size in tensor.shape
        }
        sizes = [size for size in _SIZES if size not in taken][:2]
        if len(sizes) < 2:
            raise SeparationError("the model has too many different sizes")
        first, second = (_trace(module, inputs, size) for size in sizes)
        if first != second:
            raise SeparationError("what the model does depends on the number of examples")
    except SeparationError as reason:
        return str(reason)
    except Exception as error:
        return _first_line(error)
    return None


def _refuse_strange(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Refuse anything that makes calling the model differ from calling its forward."""
    for tensor in inputs:
        if type(tensor) is not Tensor or not tensor.ndim:
            raise SeparationError(
                "an input is not a plain tensor with examples as its first dimension"
            )
    for tensor in (*module.parameters(), *module.buffers()):
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided:
            raise SeparationError(f"a parameter or buffer is of type {type(tensor).__name__}")
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(torch_module, f"_global{name}", None) for name in hooks):
        raise SeparationError("hooks are registered for all modules")
    for name, layer in module.named_modules():
        kind = type(layer)
        known = (kind.__call__, kind._call_impl) == (nn.Module.__call__, nn.Module._call_impl)
        own = any(callable(getattr(kind, attribute, None)) for attribute in vars(layer))
        own |= kind.forward is not FORWARDS.get(kind, kind.forward)
        compiled = getattr(layer, "_compiled_call_impl", None) is not None
        if (
            altered(layer)
            or own
            or compiled
            or not known
            or isinstance(layer, torch.jit.ScriptModule)
        ):
            raise SeparationError(
                f"layer {name or '(the model)'} ({kind.__name__}): has hooks, or a method or a "
                "way of being called of its own"
            )


def _is_known_sequence(module: nn.Module, inputs: tuple[Tensor, ...]) -> bool:
    """Whether the module is a plain sequence of known layers; refuses one that mixes examples.

    Their conditions only ask for numbers of dimensions, so that nothing has to be run.
    """
    layers = list(_sequence("", module))
    if len(inputs) != 1 or any(type(layer) not in LAYERS for _, layer in layers):
        return False
    changes = [_added_dimensions(layer) for _, layer in layers]
    if None in changes:
        return False
    dimensions = inputs[0].ndim
    for (name, layer), added in zip(layers, changes, strict=True):
        stand_in = torch.empty((1,) * dimensions)
        check_layer(LayerCall(name or "(the model)", layer, {"input": stand_in}, lambda _: 0))
        dimensions += added(dimensions) if callable(added) else added or 0
    return True


def _sequence(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for inner, layer in module._modules.items():
        if layer is not None:
            yield from _sequence(f"{name}.{inner}" if name else inner, layer)


def _added_dimensions(layer: nn.Module) -> Callable[[int], int] | int | None:
    """How many more dimensions the result has than the input; None if that is not known."""
    if isinstance(layer, nn.Flatten):
        start, end = layer.start_dim, layer.end_dim
        return lambda dimensions: start % dimensions - end % dimensions
    if isinstance(layer, nn.Unflatten):
        return len(layer.unflattened_size) - 1
    if isinstance(layer, nn.Embedding):
        return 1
    several = getattr(layer, "return_indices", False)
    others = (*RECURRENT, nn.Bilinear, nn.Fold, nn.Unfold, *ATTENTION)
    return None if several or isinstance(layer, others) else 0


def _trace(module: nn.Module, inputs: tuple[Tensor, ...], size: int) -> list[Any]:
    """Run a copy of the module on ``size`` examples without values; returns what it did."""
    model = _copy(module)
    watch = _Watch(model, inputs[0].device if inputs else torch.device("cpu"), size)
    state = State(model)
    examples = [
        torch.empty((size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
        for tensor in inputs
    ]
    for example in examples:
        watch.examples[id(example)] = example, 0
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
            with watch.guard, watch:
                outputs = model(*examples)
        except Exception as error:
            # The model's own code may have caught the first one.
            reason = watch.reason or _first_line(error)
            raise SeparationError(reason) from error
        finally:
            drawn = not torch.equal(before, torch.default_generator.get_state())
            if random.getstate() != python:
                drawn = True
                random.setstate(python)
            if not _equal_states(np.random.get_state(), numpy):
                drawn = True
                np.random.set_state(numpy)
    if watch.reason:
        raise SeparationError(watch.reason)
    if drawn:
        raise SeparationError("the model draws random numbers outside of torch's layers")
    if state.changed():
        raise SeparationError("the forward pass writes a buffer, an attribute or a variable")
    watch.check_outputs(outputs)
    return watch.log


def _first_line(error: Exception) -> str:
    if isinstance(error, SeparationError):
        return str(error)
    text = str(error).strip().splitlines() or [type(error).__name__]
    return f"the model cannot be followed without values ({type(error).__name__}: {text[0]})"


def _initialized_devices() -> list[int]:
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


def _equal_states(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def _copy(module: nn.Module) -> nn.Module:
    """A copy whose tensors have shapes but no values."""
    memo: dict[int, Any] = {}
    for tensor in _tensors(module):
        empty = torch.empty_like(tensor.detach(), device="meta")
        memo[id(tensor)] = (
            nn.Parameter(empty, requires_grad=tensor.requires_grad)
            if isinstance(tensor, nn.Parameter)
            else empty.requires_grad_(tensor.requires_grad)
        )
    try:
        model = copy.deepcopy(module, memo)
    except Exception as error:
        raise SeparationError(
            f"the model cannot be copied ({type(error).__name__}: {str(error)[:80]})"
        ) from error
    if [(n, type(m)) for n, m in model.named_modules()] != [
        (n, type(m)) for n, m in module.named_modules()
    ]:
        raise SeparationError("a copy of the model is not the same model")
    if {id(layer) for layer in model.modules()} & {id(layer) for layer in module.modules()}:
        raise SeparationError("a copy of the model shares layers with it")
    return model


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Parameters, buffers and other attributes."""
    for layer in module.modules():
        for values in (layer._parameters, layer._buffers, vars(layer)):
            yield from (value for value in values.values() if isinstance(value, Tensor))


class _Guard(TorchDispatchMode):
    """Refuses operations that bypass the functions that are inspected."""

    def __init__(self, watch: "_Watch") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.watch = watch

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch would load its compiler, for a second or two.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.watch.inside:
            self.watch.refuse(SeparationError(f"operation {func} bypasses torch's own functions"))
        return func(*args, **(kwargs or {}))


class _Watch(TorchFunctionMode):
    """Inspects every torch function that a model calls, and follows the examples through it."""

    def __init__(self, model: nn.Module, device: torch.device, size: int) -> None:
        super().__init__()
        self.device = device
        self.size = BatchSize(self.refuse)
        self.plain_size = size
        self.guard = _Guard(self)
        self.inside = False
        self.reason: str | None = None
        self.log: list[Any] = []
        # Tensors by id, kept alive so that no other tensor can get the same id.
        self.examples: dict[int, tuple[Tensor, int]] = {}
        self.constants: dict[int, Tensor] = {}
        self.numbers: dict[int, int] = {}
        self.called: set[int] = set()
        for tensor in _tensors(model):
            self.constants[id(tensor)] = tensor
        self.own = frozenset(self.constants)
        for name, layer in model.named_modules():
            if type(layer) in LAYERS or isinstance(layer, _BatchNorm):
                self._take_over(name or "(the model)", layer)

    def _take_over(self, name: str, layer: nn.Module) -> None:
        """Put a check in front of a known layer of the copy."""
        forward = layer.forward
        names = list(_argument_names(type(layer)))

        def checked(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                self.called.discard(id(layer))
                return forward(*args, **kwargs)
            self.inside = True
            try:
                given = dict(zip(names, args, strict=False)) | kwargs
                if id(layer) not in self.called:
                    raise SeparationError(
                        f"layer {name}: its forward is called, not the layer itself"
                    )
                self.called.discard(id(layer))
                if len(args) > len(names):
                    raise SeparationError(f"layer {name}: is called with too many arguments")
                return self._layer(
                    LayerCall(name, layer, given, self._batch), forward, args, kwargs
                )
            except SeparationError as reason:
                self.refuse(reason)
            finally:
                self.inside = False

        def note(*_: Any) -> None:
            self.called.add(id(layer))

        layer.register_forward_pre_hook(note)
        layer.forward = checked

    def _layer(
        self, call: LayerCall, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        tensors = self._known([args, kwargs])
        if any(id(tensor) not in self.own for tensor in _tensors(call.layer)):
            raise call.refuse("is run with other parameters than its own")
        if isinstance(call.layer, _BatchNorm):
            raise call.refuse("mixes the examples of a batch")
        if any(type(value) is BatchSize for value in leaves([args, kwargs])):
            raise call.refuse("is given the number of examples")
        batches = any(id(tensor) in self.examples for tensor in tensors)
        if batches or any(p.requires_grad for p in call.layer.parameters()):
            check_layer(call)
        result = _forward(call, forward, self._runnable(args), self._runnable(kwargs))
        return self._result(call.name, [args, kwargs], result, batches, None)

    def refuse(self, reason: SeparationError) -> Any:
        """Keep the first reason, even if the model catches the exception."""
        if self.reason is None:
            self.reason = f"{reason}{_place()}"
        raise reason

    def _batch(self, tensor: Tensor) -> int | None:
        found = self.examples.get(id(tensor))
        return None if found is None else found[1]

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        self.inside = True
        try:
            return self._function(func, args, kwargs)
        except SeparationError as reason:
            self.refuse(reason)
        finally:
            self.inside = False

    def _function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            return self._attribute(func, args)
        if _get_current_dispatch_mode() is not self.guard:
            raise SeparationError("the model changes what torch's functions do")
        tensors = self._known([args, kwargs])
        batches = [self.examples[id(t)] for t in tensors if id(t) in self.examples]
        sized = any(type(value) is BatchSize for value in leaves([args, kwargs]))
        if any(type(value) is int and value == self.plain_size for value in leaves([args, kwargs])):
            raise SeparationError(
                f"function {name}: is given a number made from that of the examples"
            )
        if not batches and not sized:
            return self._constant(func, args, kwargs)
        if batches and func in _QUESTIONS and args and args[0] is batches[0][0]:
            return self._answer(func, name, args, kwargs)
        if name in _VALUES:
            raise SeparationError(
                f"function {name}: the values of a batch decide what the model does"
            )
        if name == "__len__":
            raise SeparationError(
                "function len: gives a number that cannot be followed, unlike x.size(0)"
            )
        if kwargs.get("out") is not None:
            raise SeparationError(f"function {name}: writes into another tensor (out)")
        if func not in FUNCTIONS:
            raise SeparationError(f"function {name}: is not known to treat examples separately")
        name, rule = FUNCTIONS[func]
        if sized and name not in SIZED:
            raise SeparationError(f"function {name}: is given the number of examples")
        if any(t.requires_grad and id(t) not in self.examples for t in tensors):
            raise SeparationError(
                f"function {name}: uses a trained parameter outside of its own layer"
            )
        named = {key: value for key, value in kwargs.items() if key != "out"}
        places = (named.pop("input"), *args) if not args and "input" in named else args
        check = rule(Call(name, places, named, batches))
        result = func(*self._runnable(args, name == "to"), **self._runnable(kwargs))
        return self._result(name, [args, kwargs], result, True, check)

    def _attribute(self, func: Any, args: tuple[Any, ...]) -> Any:
        name = getattr(func.__self__, "__name__", "")
        if getattr(Tensor, name, None) is not func.__self__:
            raise SeparationError(f"attribute {name} is not one of torch's tensors")
        tensor = args[0]
        self._known([tensor])
        if name == "device":
            return self.device if tensor.is_meta else tensor.device
        if name == "is_cuda":
            return self.device.type == "cuda" if tensor.is_meta else tensor.is_cuda
        if name == "is_meta":
            return False
        if id(tensor) not in self.examples:
            result = func(*args)
            if isinstance(result, Tensor):
                self.constants[id(result)] = result
            return result
        if name == "shape":
            return self._sizes(tensor)
        if name in ("ndim", "dtype", "layout", "requires_grad", "is_sparse", "is_nested"):
            return func(*args)
        if name in ("T", "mT", "data"):
            anything(Call(name, args, {}, [self.examples[id(tensor)]]))
            return self._result(name, args, func(*args), True, None)
        raise SeparationError(
            f"attribute {name} of a batch is not known to treat examples separately"
        )

    def _answer(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name != "size":
            return func(*args, **kwargs)
        sizes = self._sizes(args[0])
        given = [*args[1:], *kwargs.values()]
        if not given or given == [None]:
            return sizes
        if len(given) > 1 or type(given[0]) is not int:
            raise SeparationError("function size: is not known with these arguments")
        return sizes[given[0]]

    def _sizes(self, tensor: Tensor) -> tuple[int, ...]:
        batch = self.examples[id(tensor)][1]
        return tuple(
            cast(int, self.size) if number == batch else size
            for number, size in enumerate(tensor.shape)
        )

    def _known(self, values: Any) -> list[Tensor]:
        """The tensors among some arguments; each must be one that was followed so far."""
        tensors = [value for value in leaves(values) if isinstance(value, Tensor)]
        for tensor in tensors:
            if type(tensor) not in (Tensor, nn.Parameter):
                raise SeparationError(f"a tensor is of type {type(tensor).__name__}")
            if id(tensor) not in self.examples and id(tensor) not in self.constants:
                raise SeparationError("a tensor comes from outside of the model")
        return tensors

    def _constant(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Nothing here depends on the examples."""
        tensors = [value for value in leaves([args, kwargs]) if isinstance(value, Tensor)]
        if any(tensor.is_meta for tensor in tensors):
            args, kwargs = self._runnable(args), self._runnable(kwargs)
        result = func(*args, **kwargs)
        self._keep(result)
        return result

    def _keep(self, result: Any) -> None:
        for value in leaves(result):
            if isinstance(value, Tensor):
                if self.plain_size in value.shape:
                    raise SeparationError("a constant is made from the number of examples")
                self.constants[id(value)] = value

    def _runnable(self, value: Any, device: bool = False) -> Any:
        """Arguments as torch takes them, all without values; ``device``: a text is a device."""
        if type(value) is BatchSize:
            return self.plain_size
        if isinstance(value, Tensor):
            if value.is_meta:
                return value
            return torch.empty_like(value, device="meta")
        if isinstance(value, torch.device) or (device and isinstance(value, str)):
            return torch.device("meta")
        if type(value) in (tuple, list, torch.Size):
            return type(value)(self._runnable(part, device) for part in value)
        if type(value) is dict:
            return {
                key: torch.device("meta")
                if key == "device" and part is not None
                else self._runnable(part)
                for key, part in value.items()
            }
        if type(value) is slice:
            return slice(*(self._runnable(p) for p in (value.start, value.stop, value.step)))
        return value

    def _result(
        self,
        name: str,
        given: Any,
        result: Any,
        batches: bool,
        check: Callable[[Tensor, int], None] | None,
    ) -> Any:
        """Find the examples in what a function or a layer returned."""
        if not batches:
            self._keep(result)
            return result
        sized = any(type(value) is BatchSize for value in leaves(given))
        entry = [name, *(self._described(value) for value in leaves(given))]
        for value in leaves(result):
            if isinstance(value, Tensor):
                places = [n for n, size in enumerate(value.shape) if size == self.plain_size]
                if not places and name in FILLED and not sized:
                    self.constants[id(value)] = value
                    continue
                if len(places) != 1:
                    raise SeparationError(
                        f"function {name}: examples have no dimension of their own in its result"
                    )
                if check is not None:
                    check(value, places[0])
                self.constants.pop(id(value), None)
                self.examples[id(value)] = value, places[0]
                self.numbers[id(value)] = len(self.numbers)
                entry.append(self._described(value))
            elif value is not None and not isinstance(value, (bool, int, float, str)):
                raise SeparationError(f"function {name}: returns {type(value).__name__}")
        self.log.append(entry)
        return result

    def _described(self, value: Any) -> Any:
        """A description of a value that is the same for any number of examples."""
        if type(value) is BatchSize:
            return "the number of examples"
        if isinstance(value, Tensor):
            shape = tuple(-1 if size == self.plain_size else size for size in value.shape)
            return shape, self.numbers.get(id(value)), self._batch(value), str(value.dtype)
        plain = value is None or isinstance(value, (bool, int, float, str))
        return repr(value) if plain else type(value).__name__

    def check_outputs(self, outputs: Any) -> None:
        """Examples must come first in what the model returns, and gradients by torch's rules."""
        nodes: list[Any] = []
        for value in leaves(outputs):
            if isinstance(value, Tensor):
                if id(value) not in self.examples and id(value) not in self.constants:
                    raise SeparationError("an output of the model comes from outside of it")
                if id(value) in self.examples and self.examples[id(value)][1] != 0:
                    raise SeparationError(
                        "an output of the model does not have the examples in front"
                    )
                if id(value) not in self.examples and value.requires_grad:
                    raise SeparationError(
                        "an output of the model is a trained parameter, not a batch"
                    )
                nodes.append(value.grad_fn)
            elif value is not None and type(value) not in (bool, int, float, str):
                raise SeparationError(f"the model returns {type(value).__name__}")
            self.log.append(self._described(value))
        seen: set[Any] = set()
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if isinstance(node, BackwardCFunction):
                raise SeparationError(f"{type(node).__name__}: has a backward pass of its own")
            nodes += [following for following, _ in node.next_functions]


def _forward(call: LayerCall, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a layer for the shapes of its results."""
    steps = call.given.get("input")
    if type(call.layer) not in RECURRENT or not isinstance(steps, Tensor) or steps.ndim != 3:
        return forward(*args, **kwargs)
    # One time step is enough, since all have the same shape.
    kwargs = {**dict(zip(_argument_names(type(call.layer)), args, strict=False)), **kwargs}
    outputs, states = forward(**{**kwargs, "input": kwargs["input"][:, :1]})
    return outputs.expand(-1, steps.shape[1], -1), states


# What may be asked about a batch without looking at its values or at how many examples it has.
_QUESTIONS = frozenset(
    (
        *(Tensor.size, Tensor.dim, Tensor.ndimension),
        *(Tensor.is_floating_point, torch.is_floating_point),
        *(Tensor.is_complex, torch.is_complex),
    )
)
_VALUES = frozenset(
    ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "__array__")
)


def _argument_names(kind: type[nn.Module]) -> Iterator[str]:
    code = kind.forward.__code__
    yield from code.co_varnames[1 : code.co_argcount]


def _place() -> str:
    """The line of the model that is being run."""
    ours = {str(Path(__file__).parent / f"{name}.py") for name in _FILES}
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path not in ours and not path.startswith(_TORCH):
            return f" ({Path(path).name}, line {frame.f_lineno})"
        if path in ours and frame.f_code.co_name == "_trace":
            return ""
        frame = frame.f_back
    return ""


_FILES = ("separation", "separation_functions", "separation_layers")
_TORCH = str(Path(torch.__file__).parent)


class State:
    """What a model holds, to see whether its forward pass changes it.

    Besides its attributes, this includes the outside variables that its methods use.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.before = list(self._parts())

    def changed(self) -> bool:
        """Whether anything was replaced, added or written in place."""
        after = list(self._parts())
        return len(after) != len(self.before) or any(
            not (old is new or (type(old) in _PLAIN and type(old) is type(new) and old == new))
            or version != new_version
            for (old, version), (new, new_version) in zip(self.before, after, strict=True)
        )

    def _parts(self) -> Iterator[tuple[Any, Any]]:
        seen: set[int] = set()
        stack: list[Any] = [self.model]
        classes: set[type] = set()
        for layer in self.model.modules():
            for kind in type(layer).__mro__:
                if not kind.__module__.startswith("torch.") and kind is not object:
                    classes.add(kind)
        for kind in sorted(classes, key=id):
            stack.append(dict(vars(kind)))
            for function in vars(kind).values():
                if isinstance(function, FunctionType):
                    stack.append(function)
        # Kept alive until the end, since values already seen are recognised by their id.
        self.outside: list[Any] = list(stack)
        while stack:
            yield from self._part(stack.pop(), seen, stack)

    def _part(self, value: Any, seen: set[int], stack: list[Any]) -> Iterator[tuple[Any, Any]]:
        if isinstance(value, Tensor):
            yield value, value._version
            stack.append(vars(value))
            return
        if isinstance(value, np.ndarray):
            yield value, value.tobytes() if value.size <= _MANY else None
            return
        if type(value) not in (_Outside, dict):
            yield value, None
        if type(value) in _PLAIN or isinstance(value, _OPAQUE) or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, FunctionType):
            if not value.__module__.startswith(("torch.", __name__)):
                self.outside.append(_outside(value))
                stack.append(self.outside[-1])
        elif isinstance(value, MethodType):
            stack += [value.__self__, value.__func__]
        elif isinstance(value, dict):
            yield len(value), None
            if len(value) <= _MANY:
                yield from ((key, None) for key in value)
                stack.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            yield len(value), None
            if len(value) <= _MANY:
                stack.extend(value)
        elif hasattr(value, "__dict__"):
            stack.append(vars(value))


class _Outside(dict[str, Any]):
    """The globals and closure variables that a function uses."""


def _outside(function: FunctionType) -> _Outside:
    names = function.__code__.co_names
    found = _Outside({n: function.__globals__[n] for n in names if n in function.__globals__})
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            found[name] = None
    return found


_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.Size, torch.dtype, torch.device)
_OPAQUE = (type, BuiltinFunctionType, ModuleType)
# Longer containers are data rather than state, and only compared by their length.
_MANY = 10_000
