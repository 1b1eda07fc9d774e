"""Follows the examples of a batch through every torch function that a model calls."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from pacdp.clipping.recurrent import RECURRENT
from pacdp.clipping.separation.calls import (
    BatchSize,
    Call,
    Check,
    LayerCall,
    SeparationError,
    leaves,
    one_batch,
    tensors_in,
)
from pacdp.clipping.separation.function_table import FILLING, FUNCTIONS, TAKING_SIZES
from pacdp.clipping.separation.layers import LAYERS, check_layer

# What may be asked about a batch without looking at its values or at how many examples it has.
_QUESTIONS = frozenset(
    (
        *(Tensor.size, Tensor.dim, Tensor.ndimension),
        *(Tensor.is_floating_point, torch.is_floating_point),
        *(Tensor.is_complex, torch.is_complex),
    )
)
# Functions that turn the values of a batch into Python values.
_READ_VALUES = frozenset(
    ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "__array__")
)
_SIMPLE = (bool, int, float, str)
_PACKAGE_FOLDER, _TORCH_FOLDER = str(Path(__file__).parent), str(Path(torch.__file__).parent)


def module_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Iterate over parameters, buffers and other attributes."""
    for layer in module.modules():
        for values in (layer._parameters, layer._buffers, vars(layer)):
            yield from (value for value in values.values() if isinstance(value, Tensor))


class _Guard(TorchDispatchMode):
    """Refuses operations that bypass the functions that are inspected."""

    def __init__(self, tracer: "Tracer") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tracer = tracer

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch would load its compiler, which takes a second or two.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.tracer.inside:
            self.tracer.refuse(SeparationError(f"operation {func} bypasses torch's own functions"))
        return func(*args, **(kwargs or {}))


class Tracer(TorchFunctionMode):
    """Inspects every torch function that a model calls, and follows the examples through it."""

    def __init__(self, model: nn.Module, device: torch.device, size: int) -> None:
        super().__init__()
        self.device = device
        self.batch_size = BatchSize(self.refuse)
        self.plain_size = size
        self.guard = _Guard(self)
        self.inside = False
        self.reason: str | None = None
        self.log: list[Any] = []
        # Tensors by id, kept alive so that no other tensor can get the same id.
        self.examples: dict[int, tuple[Tensor, int]] = {}
        self.constants = {id(tensor): tensor for tensor in module_tensors(model)}
        self.numbers: dict[int, int] = {}
        self.called: set[int] = set()
        self.of_model = frozenset(self.constants)
        for name, layer in model.named_modules():
            if type(layer) in LAYERS or isinstance(layer, _BatchNorm):
                self._wrap_layer(name or "(the model)", layer)

    def refuse(self, reason: SeparationError) -> Any:
        """Raise the reason, and remember the first one even if the model catches the exception."""
        if self.reason is None:
            self.reason = f"{reason}{_current_line()}"
        raise reason

    def _wrap_layer(self, name: str, layer: nn.Module) -> None:
        """Put a check in front of a known layer of the copy."""
        forward = layer.forward
        names = _argument_names(type(layer))

        def checked(*args: Any, **kwargs: Any) -> Any:
            was_called = id(layer) in self.called
            self.called.discard(id(layer))
            if self.inside:
                return forward(*args, **kwargs)
            self.inside = True
            try:
                given = dict(zip(names, args, strict=False)) | kwargs
                call = LayerCall(name, (), given, self._batches([args, kwargs]), layer)
                if not was_called:
                    raise call.refuse("its forward is called, not the layer itself")
                if len(args) > len(names):
                    raise call.refuse("is called with too many arguments")
                return self._trace_layer(call, forward)
            except SeparationError as reason:
                self.refuse(reason)
            finally:
                self.inside = False

        layer.register_forward_pre_hook(lambda *_: self.called.add(id(layer)))
        layer.forward = checked

    def _trace_layer(self, call: LayerCall, forward: Callable[..., Any]) -> Any:
        given = dict(call.keywords)
        self._known_tensors(given)
        if any(id(tensor) not in self.of_model for tensor in module_tensors(call.layer)):
            raise call.refuse("is run with other parameters than its own")
        if isinstance(call.layer, _BatchNorm):
            raise call.refuse("mixes the examples of a batch")
        if any(type(value) is BatchSize for value in leaves(given)):
            raise call.refuse("is given the number of examples")
        if call.examples or any(p.requires_grad for p in call.layer.parameters()):
            check_layer(call)
        arguments = self._without_values(given)
        steps = given.get("input")
        if type(call.layer) in RECURRENT and isinstance(steps, Tensor) and steps.ndim == 3:
            # One time step is enough, since all have the same shape.
            outputs, states = forward(**{**arguments, "input": arguments["input"][:, :1]})
            result = outputs.expand(-1, steps.shape[1], -1), states
        else:
            result = forward(**arguments)
        return self._follow(call.name, given, result, bool(call.examples), None)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        self.inside = True
        try:
            return self._trace_function(func, args, kwargs)
        except SeparationError as reason:
            self.refuse(reason)
        finally:
            self.inside = False

    def _trace_function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", str(func))
        if name == "__get__":
            return self._trace_attribute(func, args)
        if _get_current_dispatch_mode() is not self.guard:
            raise SeparationError("the model changes what torch's functions do")
        given = [args, kwargs]
        tensors, batches = self._known_tensors(given), self._batches(given)
        takes_size = any(type(value) is BatchSize for value in leaves(given))
        call = Call(name, args, kwargs, batches)
        if any(type(value) is int and value == self.plain_size for value in leaves(given)):
            raise call.refuse("is given a number made from that of the examples")
        if not batches and not takes_size:
            if any(tensor.is_meta for tensor in tensors):
                args, kwargs = self._without_values(args), self._without_values(kwargs)
            return self._keep_constants(func(*args, **kwargs))
        if batches and func in _QUESTIONS and call.first_is_batch():
            return self._answer(call, func)
        if name in _READ_VALUES:
            raise call.refuse("the values of a batch decide what the model does")
        if name == "__len__":
            raise call.refuse("gives a number that cannot be followed, unlike x.size(0)")
        if kwargs.get("out") is not None:
            raise call.refuse("writes into another tensor (out)")
        if func not in FUNCTIONS:
            raise call.refuse("is not known to treat examples separately")
        name, rule = FUNCTIONS[func]
        if takes_size and name not in TAKING_SIZES:
            raise call.refuse("is given the number of examples")
        if any(t.requires_grad and id(t) not in self.examples for t in tensors):
            raise call.refuse("uses a trained parameter outside of its own layer")
        keywords = {key: value for key, value in kwargs.items() if key != "out"}
        positional = (keywords.pop("input"), *args) if not args and "input" in keywords else args
        check = rule(Call(name, positional, keywords, batches))
        result = func(*self._without_values(args, name == "to"), **self._without_values(kwargs))
        return self._follow(name, given, result, True, check)

    def _trace_attribute(self, func: Any, args: tuple[Any, ...]) -> Any:
        name = getattr(func.__self__, "__name__", "")
        if getattr(Tensor, name, None) is not func.__self__:
            raise SeparationError(f"attribute {name} is not one of torch's tensors")
        tensor = args[0]
        self._known_tensors([tensor])
        if name in ("device", "is_cuda", "is_meta"):
            # Of the device on which the model itself will run.
            device = self.device if tensor.is_meta else tensor.device
            return {"device": device, "is_cuda": device.type == "cuda", "is_meta": False}[name]
        if id(tensor) not in self.examples:
            result = func(*args)
            if isinstance(result, Tensor):
                self.constants[id(result)] = result
            return result
        if name == "shape":
            return self._shape(tensor)
        if name in ("ndim", "dtype", "layout", "requires_grad", "is_sparse", "is_nested"):
            return func(*args)
        if name in ("T", "mT", "data"):
            one_batch(Call(name, args, {}, self._batches(args)))
            return self._follow(name, args, func(*args), True, None)
        raise SeparationError(
            f"attribute {name} of a batch is not known to treat examples separately"
        )

    def _answer(self, call: Call, func: Any) -> Any:
        """Answer a question about a batch that does not depend on its values."""
        if call.name != "size":
            return func(*call.args, **call.keywords)
        sizes = self._shape(call.args[0])
        given = [*call.args[1:], *call.keywords.values()]
        if not given or given == [None]:
            return sizes
        if len(given) > 1 or type(given[0]) is not int:
            raise call.refuse("is not known with these arguments")
        return sizes[given[0]]

    def _shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of a batch, with a number of examples that cannot be computed with."""
        batch = self.examples[id(tensor)][1]
        return tuple(
            cast(int, self.batch_size) if number == batch else size
            for number, size in enumerate(tensor.shape)
        )

    def _batches(self, values: Any) -> list[tuple[Tensor, int]]:
        """List the tensors that hold examples, each with its batch dimension."""
        return [self.examples[id(t)] for t in tensors_in(values) if id(t) in self.examples]

    def _known_tensors(self, values: Any) -> list[Tensor]:
        """List the tensors among some arguments; each must be one that was followed so far."""
        tensors = tensors_in(values)
        for tensor in tensors:
            if type(tensor) not in (Tensor, nn.Parameter):
                raise SeparationError(f"a tensor is of type {type(tensor).__name__}")
            if id(tensor) not in self.examples and id(tensor) not in self.constants:
                raise SeparationError("a tensor comes from outside of the model")
        return tensors

    def _keep_constants(self, result: Any) -> Any:
        """Remember the tensors of a result that depends on no example."""
        for tensor in tensors_in(result):
            if self.plain_size in tensor.shape:
                raise SeparationError("a constant is made from the number of examples")
            self.constants[id(tensor)] = tensor
        return result

    def _without_values(self, value: Any, text_is_device: bool = False) -> Any:
        """Convert arguments to plain numbers and to tensors without values."""
        if type(value) is BatchSize:
            return self.plain_size
        if isinstance(value, Tensor):
            return value if value.is_meta else torch.empty_like(value, device="meta")
        if isinstance(value, torch.device) or (text_is_device and isinstance(value, str)):
            return torch.device("meta")
        if type(value) in (tuple, list, torch.Size):
            return type(value)(self._without_values(part, text_is_device) for part in value)
        if type(value) is dict:
            return {
                key: torch.device("meta")
                if key == "device" and part is not None
                else self._without_values(part)
                for key, part in value.items()
            }
        if type(value) is slice:
            return slice(*map(self._without_values, (value.start, value.stop, value.step)))
        return value

    def _follow(
        self, name: str, given: Any, result: Any, has_examples: bool, check: Check | None
    ) -> Any:
        """Find the examples in what a function or a layer returned."""
        if not has_examples:
            return self._keep_constants(result)
        takes_size = any(type(value) is BatchSize for value in leaves(given))
        entry = [name, *map(self._describe, leaves(given))]
        for value in leaves(result):
            if isinstance(value, Tensor):
                places = [n for n, size in enumerate(value.shape) if size == self.plain_size]
                if not places and name in FILLING and not takes_size:
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
                entry.append(self._describe(value))
            elif value is not None and not isinstance(value, _SIMPLE):
                raise SeparationError(f"function {name}: returns {type(value).__name__}")
        self.log.append(entry)
        return result

    def _describe(self, value: Any) -> Any:
        """Describe a value in a way that is the same for any number of examples."""
        if type(value) is BatchSize:
            return "the number of examples"
        if isinstance(value, Tensor):
            shape = tuple(-1 if size == self.plain_size else size for size in value.shape)
            _, batch = self.examples.get(id(value), (None, None))
            return shape, self.numbers.get(id(value)), batch, str(value.dtype)
        simple = value is None or isinstance(value, _SIMPLE)
        return repr(value) if simple else type(value).__name__

    def check_outputs(self, outputs: Any) -> None:
        """Require examples first in what the model returns, and gradients by torch's rules."""
        nodes: list[Any] = []
        for value in leaves(outputs):
            if isinstance(value, Tensor):
                _, batch = self.examples.get(id(value), (None, None))
                if batch is None and id(value) not in self.constants:
                    raise SeparationError("an output of the model comes from outside of it")
                if batch:
                    raise SeparationError("an output of the model has examples not in front")
                if batch is None and value.requires_grad:
                    raise SeparationError("an output of the model is a trained parameter")
                nodes.append(value.grad_fn)
            elif value is not None and type(value) not in _SIMPLE:
                raise SeparationError(f"the model returns {type(value).__name__}")
            self.log.append(self._describe(value))
        seen: set[Any] = set()
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if isinstance(node, BackwardCFunction):
                raise SeparationError(f"{type(node).__name__}: has a backward pass of its own")
            nodes += [following for following, _ in node.next_functions]


def _argument_names(kind: type[nn.Module]) -> tuple[str, ...]:
    code = kind.forward.__code__
    return code.co_varnames[1 : code.co_argcount]


def _current_line() -> str:
    """Name the line of the model that is being run."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((_PACKAGE_FOLDER, _TORCH_FOLDER)):
            return f" ({Path(path).name}, line {frame.f_lineno})"
        if path.startswith(_PACKAGE_FOLDER) and frame.f_code.co_name == "_trace":
            return ""
        frame = frame.f_back
    return ""
