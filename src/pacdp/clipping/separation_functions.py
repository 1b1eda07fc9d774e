"""Which functions of torch treat the examples of a batch separately, and under which conditions.

Each rule looks at one call. It raises ``SeparationError`` unless no example can influence another
through it. Results are not described here: the caller finds the batch dimension of the result by
its size, which no other dimension has. A rule whose precondition is not sufficient returns a check
on where that dimension was found.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class SeparationError(Exception):
    """It is not shown that examples are treated separately; the message says why."""


class BatchSize(torch.SymInt):
    """The number of examples: may be passed on as a size, and nothing else.

    A model that computes with it or branches on it may behave differently for another batch size,
    which a trace at this size would not show. It is not a real int, since C code would read an
    int's value directly; torch accepts this kind of number wherever it takes a size.
    """

    def __init__(self, refuse: Callable[[SeparationError], Any]) -> None:
        self._refusal = refuse

    # What isinstance in a model sees.
    __class__ = property(lambda self: int)

    def __eq__(self, other: object) -> bool:
        return True if other is self else self._refuse()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def _refuse(self, *_: Any) -> Any:
        self._refusal(
            SeparationError("the number of examples is used in a computation or a condition")
        )

    __hash__ = _refuse


for _name in (
    *("lt", "le", "gt", "ge", "bool", "int", "float", "complex", "index", "str", "repr", "format"),
    *("neg", "pos", "abs", "invert", "round", "trunc", "floor", "ceil", "sym_float", "sym_max"),
    *("sym_min", "sym_not", "sym_ite", "sym_sum"),
    *(
        f"{prefix}{operator}"
        for prefix in ("", "r", "i")
        for operator in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow"),
            *("and", "or", "xor", "lshift", "rshift"),
        )
    ),
):
    setattr(BatchSize, f"__{_name}__", BatchSize._refuse)


@dataclass(frozen=True)
class Call:
    """A call of a function: ``examples`` are its per-example tensors and their batch dimensions."""

    name: str
    args: tuple[Any, ...]
    keywords: Mapping[str, Any]
    examples: list[tuple[Tensor, int]]

    def value(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name."""
        if name in self.keywords:
            return self.keywords[name]
        return self.args[position] if len(self.args) > position else default

    def only(self) -> tuple[Tensor, int]:
        """The first argument, if it alone is per-example."""
        if len(self.examples) != 1 or not self.args or self.args[0] is not self.examples[0][0]:
            raise SeparationError(
                f"function {self.name}: is only known with one batch, as first argument"
            )
        return self.examples[0]

    def allow(self, *names: str) -> None:
        """Refuse keywords that the rule does not take into account."""
        for name in self.keywords:
            if name not in names:
                raise SeparationError(
                    f"function {self.name}: is not known with the argument {name}"
                )


# Gets the result and the dimension in which the examples were found.
Check = Callable[[Tensor, int], None]
Rule = Callable[[Call], Check | None]


def leaves(value: Any) -> Iterator[Any]:
    """Everything in nested containers."""
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, slice):
        yield from (value.start, value.stop, value.step)
    else:
        yield value


def resolve(call_name: str, dimension: Any, dimensions: int) -> int:
    """A dimension counted from the front."""
    if type(dimension) is not int or not -dimensions <= dimension < dimensions:
        raise SeparationError(f"function {call_name}: has no plain number for its dimension")
    return dimension % dimensions


def refuse_dimension(call_name: str, chosen: Any, tensor: Tensor, batch: int) -> None:
    """Refuse ``chosen``, one or more dimensions, if it includes the examples' or means all."""
    several = list(chosen) if isinstance(chosen, (tuple, list)) else [chosen]
    if chosen is None or not several:
        raise SeparationError(
            f"function {call_name} over all dimensions mixes the examples of a batch"
        )
    for dimension in several:
        if resolve(call_name, dimension, tensor.ndim) == batch:
            raise SeparationError(
                f"function {call_name} over dimension {dimension} mixes the examples of a batch"
            )


def anything(call: Call) -> None:
    """For functions of one batch that only reorder whole dimensions, or copy."""
    call.only()


def elementwise(call: Call) -> Check:
    """Broadcasting pairs dimensions from the back, so examples must be equally far from it."""
    distances = {tensor.ndim - batch for tensor, batch in call.examples}
    if len(distances) != 1:
        raise SeparationError(f"function {call.name}: pairs the examples with another dimension")
    distance = distances.pop()

    def check(result: Tensor, batch: int) -> None:
        if batch != result.ndim - distance:
            raise SeparationError(f"function {call.name}: moves the examples to another dimension")

    return check


def in_place(call: Call) -> Check:
    """Element-wise, and written into a batch: what examples hold must not end up in a constant."""
    if not call.args or not any(call.args[0] is tensor for tensor, _ in call.examples):
        raise SeparationError(
            f"function {call.name}: writes what depends on the examples into a constant"
        )
    return elementwise(call)


def where(call: Call) -> Check:
    """With one argument it finds indices, in all examples together."""
    if len(call.args) + len(call.keywords) != 3:
        raise SeparationError("function where: is only known with three arguments")
    return elementwise(call)


def conversion(call: Call) -> None:
    """Any other argument is only used for its dtype and device."""
    if not call.args or not any(call.args[0] is tensor for tensor, _ in call.examples):
        raise SeparationError(f"function {call.name}: takes its dtype from a batch")


_DIMENSION_KEYWORDS = (
    *("dim", "keepdim", "dtype", "p", "ord", "k", "eps", "descending", "stable"),
    *("largest", "sorted", "correction", "unbiased", "_stacklevel"),
)


def along(position: int, default: int | None = None, name: str = "dim") -> Rule:
    """For functions along dimensions that the call names; no default means all dimensions."""

    def rule(call: Call) -> None:
        tensor, batch = call.only()
        call.allow(*_DIMENSION_KEYWORDS, name)
        refuse_dimension(call.name, call.value(position, name, default), tensor, batch)

    return rule


def extremum(call: Call) -> Check | None:
    """Of two tensors, or along a dimension."""
    if isinstance(call.value(1, "other"), Tensor):
        return elementwise(call)
    return along(1)(call)


def similarity(call: Call) -> None:
    """Of tensors with the same number of dimensions, along one of them."""
    call.allow("dim", "eps", "x1", "x2")
    both = [call.value(0, "x1"), call.value(1, "x2")]
    tensor, batch = call.examples[0]
    if not all(isinstance(value, Tensor) and value.ndim == tensor.ndim for value in both):
        raise SeparationError(
            f"function {call.name}: is only known for equal numbers of dimensions"
        )
    refuse_dimension(call.name, call.value(2, "dim", 1), tensor, batch)
    elementwise(call)


def flips(call: Call) -> None:
    """Dimensions come one by one or as a tuple."""
    tensor, batch = call.only()
    call.allow("dims")
    rest = call.args[1:]
    chosen = call.keywords.get("dims", rest[0] if len(rest) == 1 else rest)
    refuse_dimension(call.name, chosen, tensor, batch)


def rows_in_order(call: Call) -> Check:
    """For functions that keep all elements in their order and only change the shape.

    Examples stay whole if as many elements come before the first of them as did, and their number
    is a dimension of the result.
    """
    tensor, batch = call.only()
    if any(isinstance(value, torch.dtype) for value in leaves((call.args, dict(call.keywords)))):
        raise SeparationError(f"function {call.name}: reads the elements as another dtype")
    if not tensor.numel():
        raise SeparationError(f"function {call.name}: sees a batch without elements")
    before = math.prod(tensor.shape[:batch])

    def check(result: Tensor, found: int) -> None:
        if math.prod(result.shape[:found]) != before:
            raise SeparationError(f"function {call.name}: cuts the examples of a batch apart")

    return check


def squeeze(call: Call) -> Check:
    """Without a dimension it would drop the batch dimension of a batch of one."""
    tensor, batch = call.only()
    call.allow("dim")
    refuse_dimension(call.name, call.value(1, "dim"), tensor, batch)
    return rows_in_order(call)


def enlarged(call: Call) -> Check:
    """Expand and repeat add dimensions in front; the examples' keeps its place from the back."""
    if not call.examples:
        raise SeparationError(f"function {call.name}: makes a batch out of a constant")
    tensor, batch = call.only()

    def check(result: Tensor, found: int) -> None:
        if found != result.ndim - (tensor.ndim - batch):
            raise SeparationError(f"function {call.name}: moves the examples to another dimension")

    return check


def filled(call: Call) -> None:
    """A tensor of one constant: every example gets the same."""
    values = call.args[1:] if call.name.startswith("new_") else call.args
    fill = call.keywords.get("fill_value", values[1] if len(values) > 1 else None)
    if call.name.endswith("full") and type(fill) is BatchSize:
        raise SeparationError(f"function {call.name}: is filled with the number of examples")
    for value in leaves((values, dict(call.keywords))):
        if isinstance(value, Tensor):
            raise SeparationError(f"function {call.name}: is filled with a tensor")


def concatenation(call: Call) -> None:
    """Batches of the same form, along any dimension but that of the examples."""
    call.allow("dim", "tensors")
    parts = call.value(0, "tensors")
    dimension = call.value(1, "dim", 0)
    forms = {(tensor.ndim, batch) for tensor, batch in call.examples}
    if not isinstance(parts, (tuple, list)) or len(call.examples) != len(parts) or len(forms) != 1:
        raise SeparationError(
            f"function {call.name}: is only known for several batches of one form"
        )
    tensor, batch = call.examples[0]
    if call.name == "stack":
        resolve(call.name, dimension, tensor.ndim + 1)
    else:
        refuse_dimension(call.name, dimension, tensor, batch)


def gather(call: Call) -> None:
    """Each example's indices pick from that example."""
    call.allow("dim", "index")
    forms = {(tensor.ndim, batch) for tensor, batch in call.examples}
    tensors = [v for v in leaves((call.args, dict(call.keywords))) if isinstance(v, Tensor)]
    if len(forms) != 1 or len(call.examples) != 2 or len(tensors) != 2:
        raise SeparationError(
            "function gather: is only known for a batch with indices for each example"
        )
    refuse_dimension(call.name, call.value(1, "dim"), *call.examples[0])


def index_select(call: Call) -> None:
    """The same constant indices for each example."""
    tensor, batch = call.only()
    call.allow("dim", "index")
    refuse_dimension(call.name, call.value(1, "dim"), tensor, batch)


def indexing(call: Call) -> None:
    """The examples' dimension must be taken as a whole."""
    tensor, batch = call.only()
    index = call.args[1]
    parts = list(index) if isinstance(index, tuple) else [index]
    tensors = 0
    for part in parts:
        if isinstance(part, Tensor):
            tensors += 1
            if part.dtype not in (torch.int64, torch.int32) or tensors > 1:
                raise SeparationError("indexing: is only known with one tensor of whole numbers")
        elif part is not None and part is not Ellipsis and type(part) not in (int, slice):
            raise SeparationError(f"indexing: is not known with {type(part).__name__}")
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    position = 0
    for part in parts:
        if part is None:
            continue
        if part is Ellipsis:
            position += tensor.ndim - taken
            continue
        if position == batch and not _whole(part):
            raise SeparationError("indexing: picks among the examples of a batch")
        position += 1


def _whole(part: Any) -> bool:
    if type(part) is not slice:
        return False
    bounds = (part.start, part.stop, part.step)
    if any(bound is not None and type(bound) is not int for bound in bounds):
        return False
    return part.start in (None, 0) and part.stop is None and part.step in (None, 1)


def _constants_beside(call: Call, *names: str) -> tuple[Tensor, int]:
    tensor, batch = call.only()
    call.allow(*names)
    return tensor, batch


def linear(call: Call) -> None:
    """The last dimension is contracted."""
    tensor, batch = _constants_beside(call, "weight", "bias")
    if batch >= tensor.ndim - 1:
        raise SeparationError("function linear: adds up over the examples of a batch")


def matmul(call: Call) -> Check:
    """Examples may be rows of the left side, or a leading dimension of both."""
    call.allow("other", "mat2")
    left, right = call.args[0], call.value(1, "other", call.keywords.get("mat2"))
    if call.name == "__rmatmul__":
        left, right = right, left
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        raise SeparationError(f"function {call.name}: is not known with these arguments")
    batches = {id(tensor): batch for tensor, batch in call.examples}
    of_left, of_right = batches.get(id(left)), batches.get(id(right))
    mixed = of_right is not None and of_right >= right.ndim - 2
    if of_left is not None and of_right is None:
        mixed = of_left >= left.ndim - 1
    elif of_left is not None and of_right is not None:
        mixed |= of_left >= left.ndim - 2 or left.ndim - of_left != right.ndim - of_right
    if mixed:
        raise SeparationError(
            f"function {call.name}: multiplies examples of a batch with each other"
        )
    if of_left is not None:
        distance = left.ndim - of_left - (right.ndim == 1)
    else:
        assert of_right is not None
        distance = right.ndim - of_right - (left.ndim == 1)

    def check(result: Tensor, batch: int) -> None:
        if batch != result.ndim - distance:
            raise SeparationError(f"function {call.name}: moves the examples to another dimension")

    return check


def einsum(call: Call) -> None:
    """One letter stands for the examples: it is in the result, and in no constant."""
    equation, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = list(operands[0])
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        raise SeparationError(
            "function einsum: is only known with an equation that spells its result out"
        )
    terms, result = equation.replace(" ", "").split("->")
    letters = set()
    batches = {id(tensor): batch for tensor, batch in call.examples}
    parts = terms.split(",")
    if len(parts) != len(operands) or call.keywords:
        raise SeparationError("function einsum: is not known with these arguments")
    for part, operand in zip(parts, operands, strict=True):
        if not isinstance(operand, Tensor) or len(part) != operand.ndim:
            raise SeparationError("function einsum: is not known with these arguments")
        if id(operand) in batches:
            letters.add(part[batches[id(operand)]])
    letter = letters.pop()
    for part, operand in zip(parts, operands, strict=True):
        if letters or part.count(letter) != (id(operand) in batches) or result.count(letter) != 1:
            raise SeparationError(f"function einsum: mixes the examples of a batch in {equation}")


def attention(call: Call) -> Check:
    """Examples must be a leading dimension of queries, keys and values."""
    call.allow(
        *("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    )
    names = ("query", "key", "value")
    three = [call.value(number, name) for number, name in enumerate(names)]
    batches = {id(tensor): batch for tensor, batch in call.examples}
    for tensor in three:
        batch = batches.get(id(tensor))
        if batch is None or batch >= tensor.ndim - 2:
            raise SeparationError(
                f"function {call.name}: needs examples before the last two dimensions"
            )
    return elementwise(call)


def embedding(call: Call) -> None:
    """Rows of a constant table, which must not be changed by being looked up."""
    _constants_beside(
        call, "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"
    )
    if call.value(3, "max_norm") is not None or call.value(5, "scale_grad_by_freq", False):
        raise SeparationError(
            "function embedding: depends on all examples if it has max_norm or scales"
        )


def one_hot(call: Call) -> None:
    """Without a number of classes it takes the largest index of the batch."""
    _constants_beside(call, "num_classes")
    classes = call.value(1, "num_classes", -1)
    if type(classes) is not int or classes < 1:
        raise SeparationError("function one_hot: needs its number of classes")


def ranked(*dimensions: int) -> Rule:
    """For functional layers: examples first, and as many dimensions as a batch has."""

    def rule(call: Call) -> None:
        tensor, batch = call.only()
        if batch or tensor.ndim not in dimensions:
            raise SeparationError(
                f"function {call.name}: is not known for a batch of {tensor.ndim} dimensions with "
                f"the examples in dimension {batch}"
            )

    return rule


def padding(call: Call) -> None:
    """Only dimensions behind the examples may grow."""
    tensor, batch = _constants_beside(call, "pad", "mode", "value")
    widths = call.value(1, "pad")
    if not isinstance(widths, (tuple, list)) or batch >= tensor.ndim - len(widths) // 2:
        raise SeparationError("function pad: pads the examples of a batch")


def layer_norm(call: Call) -> None:
    """Normalises over the last dimensions."""
    tensor, batch = _constants_beside(
        call, "normalized_shape", "weight", "bias", "eps", "cudnn_enable"
    )
    shape = call.value(1, "normalized_shape")
    if not isinstance(shape, (tuple, list)) or batch >= tensor.ndim - len(shape):
        raise SeparationError(f"function {call.name}: normalises over the examples of a batch")


def instance_norm(call: Call) -> None:
    """Running statistics are those of all examples."""
    ranked(3, 4, 5)(call)
    running = call.value(1, "running_mean") is not None or call.value(2, "running_var") is not None
    if running or call.value(5, "use_input_stats", True) is not True:
        raise SeparationError("function instance_norm: keeps statistics of all examples")


def matrix_part(call: Call) -> None:
    """The last two dimensions are a matrix."""
    tensor, batch = call.only()
    if batch >= tensor.ndim - 2:
        raise SeparationError(f"function {call.name}: picks among the examples of a batch")


def batch_norm(call: Call) -> None:
    """Normalises over the examples."""
    raise SeparationError(f"function {call.name} mixes the examples of a batch")


_ELEMENTWISE = (
    "add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow "
    "float_power neg negative positive abs absolute sign sgn exp exp2 expm1 log log2 log10 log1p "
    "sqrt rsqrt square reciprocal sin cos tan asin acos atan sinh cosh asinh acosh atanh erf erfc "
    "erfinv lgamma digamma sigmoid logit tanh relu relu6 gelu silu mish elu selu celu leaky_relu "
    "hardtanh hardswish hardsigmoid hardshrink softshrink softplus softsign tanhshrink threshold "
    "logsigmoid clamp clip clamp_min clamp_max maximum minimum fmax fmin lerp addcmul addcdiv "
    "masked_fill eq ne lt le gt ge not_equal less less_equal greater greater_equal logical_and "
    "logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor isnan isinf "
    "isfinite floor ceil round trunc frac nan_to_num atan2 hypot logaddexp logaddexp2 copysign "
    "heaviside xlogy sinc dropout alpha_dropout rsub"
)
_OPERATORS = (
    "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __div__ __rdiv__ "
    "__floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__ __neg__ __pos__ __abs__ "
    "__invert__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__ __eq__ __ne__ __lt__ __le__ "
    "__gt__ __ge__"
)
_IN_PLACE_OPERATORS = (
    "__iadd__ __isub__ __imul__ __itruediv__ __idiv__ __ifloordiv__ __imod__ __ipow__ __iand__ "
    "__ior__ __ixor__"
)

# Keyed by the function object that torch reports, so that no other function of that name matches.
FUNCTIONS: dict[Any, tuple[str, Rule]] = {}
# Those whose result may be a constant, although an argument is a batch.
FILLED = frozenset({"zeros", "ones", "full", "new_zeros", "new_ones", "new_full"})
# Those that may be given the number of examples as a size.
SIZED = FILLED | {"view", "reshape", "expand", "repeat"}

_EVERYWHERE = (torch, F, Tensor, torch._C._nn)


def _register(
    names: str | Iterable[str], rule: Rule, spaces: tuple[Any, ...] = _EVERYWHERE
) -> None:
    for name in names.split() if isinstance(names, str) else names:
        for space in spaces:
            function = getattr(space, name, None)
            if function is not None:
                FUNCTIONS[function] = name, rule


_register(_ELEMENTWISE, elementwise)
_register(_OPERATORS, elementwise, (Tensor,))
_register([f"{name}_" for name in _ELEMENTWISE.split()], in_place)
_register(_IN_PLACE_OPERATORS, in_place, (Tensor,))
_register("float double half bfloat16 long int short bool contiguous", anything, (Tensor,))
_register("clone detach zeros_like ones_like full_like as_tensor", anything, (torch, Tensor))
_register("to type type_as", conversion, (Tensor,))
_register("where", where, (torch, Tensor))
_register("max min", extremum, (torch, Tensor))
_register("sum nansum mean nanmean amax amin prod any all argmax argmin logsumexp", along(1))
_register("var std var_mean std_mean median nanmedian count_nonzero", along(1))
_register("cumsum cumprod logcumsumexp cummax cummin softmax log_softmax softmin", along(1))
_register("sort argsort mode glu", along(1, -1))
_register("topk kthvalue", along(2, -1))
_register("norm", along(2), (torch, Tensor))
_register("vector_norm", along(2), (torch.linalg,))
_register("normalize", along(2, 1), (F,))
_register("cosine_similarity", similarity)
_register("chunk split tensor_split", along(2, 0), (torch, Tensor))
_register("unbind", along(1, 0), (torch, Tensor))
_register("roll", along(2, name="dims"), (torch, Tensor))
_register("narrow select", along(1), (torch, Tensor))
_register("unfold", along(1, name="dimension"), (Tensor,))
_register("index_select", index_select, (torch, Tensor))
_register("gather", gather, (torch, Tensor))
_register("flip", flips, (torch, Tensor))
_register("view reshape flatten unflatten unsqueeze", rows_in_order, (torch, Tensor))
_register("squeeze", squeeze, (torch, Tensor))
_register("transpose swapaxes swapdims permute movedim moveaxis t", anything, (torch, Tensor))
_register("expand repeat", enlarged, (Tensor,))
_register("zeros ones full", filled, (torch,))
_register("new_zeros new_ones new_full", filled, (Tensor,))
_register("cat concat concatenate stack", concatenation, (torch,))
_register("__getitem__", indexing, (Tensor,))
_register("tril triu", matrix_part, (torch, Tensor))
_register("linear", linear, (F,))
_register("matmul mm bmm __matmul__ __rmatmul__", matmul, (torch, Tensor))
_register("einsum", einsum, (torch,))
_register("scaled_dot_product_attention", attention, (F,))
_register("embedding", embedding, (F,))
_register("one_hot", one_hot, (F,))
for _number in (1, 2, 3):
    _register(
        [
            *(f"conv{_number}d", f"conv_transpose{_number}d", f"dropout{_number}d"),
            *(f"{kind}_pool{_number}d" for kind in ("max", "avg", "lp")),
            *(f"adaptive_{kind}_pool{_number}d" for kind in ("max", "avg")),
            *(f"max_pool{_number}d_with_indices", f"adaptive_max_pool{_number}d_with_indices"),
        ],
        ranked(_number + 2),
        (torch, F),
    )
_register("interpolate upsample local_response_norm feature_alpha_dropout", ranked(3, 4, 5), (F,))
_register("pixel_shuffle pixel_unshuffle channel_shuffle unfold", ranked(4), (F,))
_register("fold", ranked(3), (F,))
_register("pad", padding, (F,))
_register("layer_norm rms_norm", layer_norm, (torch, F))
_register("group_norm", ranked(2, 3, 4, 5), (torch, F))
_register("instance_norm", instance_norm, (F,))
_register("batch_norm", batch_norm, (torch, F))
