"""Rules for torch functions: when a call treats the examples of a batch separately.

Each rule looks at one call and raises ``SeparationError`` unless no example can influence another
through it. The caller finds the batch dimension of the result by its size, which no other dimension
has. Where that is not sufficient, a rule returns a check on the dimension that was found.
"""

import math
from typing import Any

import torch
from torch import Tensor

from pacdp.clipping.separation.calls import (
    BatchSize,
    Call,
    Check,
    Rule,
    examples_first,
    leaves,
    tensors_in,
)


def _at_distance(call: Call, distance: int) -> Check:
    """Check that the examples end up this many dimensions from the back."""

    def check(result: Tensor, batch: int) -> None:
        if batch != result.ndim - distance:
            raise call.refuse("moves the examples to another dimension")

    return check


def elementwise(call: Call) -> Check:
    """Broadcasting pairs dimensions from the back, so examples must be equally far from it."""
    distances = {tensor.ndim - batch for tensor, batch in call.examples}
    if len(distances) != 1:
        raise call.refuse("pairs the examples with another dimension")
    return _at_distance(call, distances.pop())


def in_place(call: Call) -> Check:
    """Element-wise, into a batch: values that depend on examples must not end up in a constant."""
    if not call.first_is_batch():
        raise call.refuse("writes what depends on the examples into a constant")
    return elementwise(call)


def where(call: Call) -> Check:
    """With a single argument it would find indices in all examples together."""
    if len(call.args) + len(call.keywords) != 3:
        raise call.refuse("is only known with three arguments")
    return elementwise(call)


def conversion(call: Call) -> None:
    """Any argument but the first is only used for its dtype and device."""
    if not call.first_is_batch():
        raise call.refuse("takes its dtype from a batch")


_DIMENSION_KEYWORDS = (
    *("dim", "keepdim", "dtype", "p", "ord", "k", "eps", "descending", "stable"),
    *("largest", "sorted", "correction", "unbiased", "_stacklevel"),
)


def along(
    position: int, default: int | None = None, name: str = "dim", *other_keywords: str
) -> Rule:
    """Functions along the dimensions that the call names; no default means all dimensions."""

    def rule(call: Call) -> None:
        call.allow(*_DIMENSION_KEYWORDS, name, *other_keywords)
        call.refuse_dimensions(call.value(position, name, default), *call.single_batch())

    return rule


def extremum(call: Call) -> Check | None:
    """The larger of two tensors, or the largest along a dimension."""
    if isinstance(call.value(1, "other"), Tensor):
        return elementwise(call)
    return along(1)(call)


def similarity(call: Call) -> None:
    """Tensors with the same number of dimensions, compared along one of them."""
    call.allow("dim", "eps", "x1", "x2")
    tensor, batch = call.examples[0]
    for value in (call.value(0, "x1"), call.value(1, "x2")):
        if not isinstance(value, Tensor) or value.ndim != tensor.ndim:
            raise call.refuse("is only known for equal numbers of dimensions")
    call.refuse_dimensions(call.value(2, "dim", 1), tensor, batch)
    elementwise(call)


def flip(call: Call) -> None:
    """The dimensions are given one by one or as a tuple."""
    call.allow("dims")
    rest = call.args[1:]
    chosen = call.keywords.get("dims", rest[0] if len(rest) == 1 else rest)
    call.refuse_dimensions(chosen, *call.single_batch())


def reshape(call: Call) -> Check:
    """Functions that keep all elements in their order and only change the shape.

    Examples stay whole if as many elements precede the batch dimension as before, and the number of
    examples is a dimension of the result.
    """
    tensor, batch = call.single_batch()
    if any(isinstance(value, torch.dtype) for value in leaves((call.args, call.keywords))):
        raise call.refuse("reads the elements as another dtype")
    if not tensor.numel():
        raise call.refuse("sees a batch without elements")
    before = math.prod(tensor.shape[:batch])

    def check(result: Tensor, dimension: int) -> None:
        if math.prod(result.shape[:dimension]) != before:
            raise call.refuse("cuts the examples of a batch apart")

    return check


def squeeze(call: Call) -> Check:
    """Without a dimension it would drop the batch dimension of a batch of one."""
    call.allow("dim")
    call.refuse_dimensions(call.value(1, "dim"), *call.single_batch())
    return reshape(call)


def expand(call: Call) -> Check:
    """New dimensions are added in front; the batch dimension keeps its place from the back."""
    tensor, batch = call.single_batch()
    return _at_distance(call, tensor.ndim - batch)


def fill(call: Call) -> None:
    """A tensor of one constant: every example gets the same."""
    values = call.args[1:] if call.name.startswith("new_") else call.args
    constant = call.keywords.get("fill_value", values[1] if len(values) > 1 else None)
    if call.name.endswith("full") and type(constant) is BatchSize:
        raise call.refuse("is filled with the number of examples")
    if tensors_in((values, call.keywords)):
        raise call.refuse("is filled with a tensor")


def concatenate(call: Call) -> None:
    """Batches of the same form, along any dimension but that of the examples."""
    call.allow("dim", "tensors")
    parts = call.value(0, "tensors")
    dimension = call.value(1, "dim", 0)
    forms = {(tensor.ndim, batch) for tensor, batch in call.examples}
    if not isinstance(parts, (tuple, list)) or len(call.examples) != len(parts) or len(forms) != 1:
        raise call.refuse("is only known for several batches of one form")
    tensor, batch = call.examples[0]
    if call.name == "stack":
        call.dimension(dimension, tensor.ndim + 1)
    else:
        call.refuse_dimensions(dimension, tensor, batch)


def gather(call: Call) -> None:
    """Each example's indices pick from that example."""
    call.allow("dim", "index")
    forms = {(tensor.ndim, batch) for tensor, batch in call.examples}
    tensors = tensors_in((call.args, call.keywords))
    if len(forms) != 1 or len(call.examples) != 2 or len(tensors) != 2:
        raise call.refuse("is only known for a batch with indices for each example")
    call.refuse_dimensions(call.value(1, "dim"), *call.examples[0])


def index(call: Call) -> None:
    """The batch dimension must be taken as a whole."""
    tensor, batch = call.single_batch()
    key = call.args[1]
    parts = list(key) if isinstance(key, tuple) else [key]
    if len(tensors_in(parts)) > 1:
        raise call.refuse("is only known with one tensor of whole numbers")
    for part in parts:
        if isinstance(part, Tensor):
            if part.dtype not in (torch.int64, torch.int32):
                raise call.refuse("is only known with one tensor of whole numbers")
        elif part is not None and part is not Ellipsis and type(part) not in (int, slice):
            raise call.refuse(f"is not known with {type(part).__name__}")
    indexed = sum(part is not None and part is not Ellipsis for part in parts)
    position = 0
    for part in parts:
        if part is None:
            continue
        if part is Ellipsis:
            position += tensor.ndim - indexed
            continue
        if position == batch and not _takes_all(part):
            raise call.refuse("picks among the examples of a batch")
        position += 1


def _takes_all(part: Any) -> bool:
    """Whether an index is a slice that takes everything in its order."""
    if type(part) is not slice:
        return False
    bounds = (part.start, part.stop, part.step)
    if any(bound is not None and type(bound) is not int for bound in bounds):
        return False
    return part.start in (None, 0) and part.stop is None and part.step in (None, 1)


def across_last(count: int, *keywords: str) -> Rule:
    """Functions that work across the last dimensions, such as a matrix product with a constant."""

    def rule(call: Call) -> None:
        call.allow(*keywords)
        call.refuse_last(count, *call.single_batch())

    return rule


def matmul(call: Call) -> Check:
    """Examples may be rows of the left side, or a leading dimension of both."""
    call.allow("other", "mat2")
    left, right = call.args[0], call.value(1, "other", call.keywords.get("mat2"))
    if call.name == "__rmatmul__":
        left, right = right, left
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        raise call.refuse("is not known with these arguments")
    left_batch, right_batch = call.batch_of(left), call.batch_of(right)
    mixed = right_batch is not None and right_batch >= right.ndim - 2
    if left_batch is not None and right_batch is None:
        mixed = left_batch >= left.ndim - 1
    elif left_batch is not None and right_batch is not None:
        mixed |= left_batch >= left.ndim - 2 or left.ndim - left_batch != right.ndim - right_batch
    if mixed:
        raise call.refuse("multiplies examples of a batch with each other")
    if left_batch is not None:
        return _at_distance(call, left.ndim - left_batch - (right.ndim == 1))
    assert right_batch is not None
    return _at_distance(call, right.ndim - right_batch - (left.ndim == 1))


def einsum(call: Call) -> None:
    """One letter stands for the examples: it is in the result, and in no constant."""
    equation, *operands = call.args
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = list(operands[0])
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        raise call.refuse("is only known with an equation that spells its result out")
    terms, result = equation.replace(" ", "").split("->")
    parts = terms.split(",")
    if len(parts) != len(operands) or call.keywords:
        raise call.refuse("is not known with these arguments")
    batches = [call.batch_of(operand) for operand in operands]
    letters = set()
    for part, operand, batch in zip(parts, operands, batches, strict=True):
        if not isinstance(operand, Tensor) or len(part) != operand.ndim:
            raise call.refuse("is not known with these arguments")
        if batch is not None:
            letters.add(part[batch])
    letter = letters.pop()
    counts = [part.count(letter) for part in parts]
    expected = [int(batch is not None) for batch in batches]
    if letters or counts != expected or result.count(letter) != 1:
        raise call.refuse(f"mixes the examples of a batch in {equation}")


_ATTENTION_KEYWORDS = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def attention(call: Call) -> Check:
    """Examples must be a leading dimension of queries, keys and values."""
    names = ("query", "key", "value")
    call.allow(*names, *_ATTENTION_KEYWORDS)
    for number, name in enumerate(names):
        tensor = call.value(number, name)
        batch = call.batch_of(tensor)
        if batch is None or batch >= tensor.ndim - 2:
            raise call.refuse("needs examples before the last two dimensions")
    return elementwise(call)


def embedding(call: Call) -> None:
    """A lookup in a constant table, which must not change the table."""
    call.allow("weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    call.single_batch()
    if call.value(3, "max_norm") is not None or call.value(5, "scale_grad_by_freq", False):
        raise call.refuse("depends on all examples with max_norm or scale_grad_by_freq")


def one_hot(call: Call) -> None:
    """Without a number of classes it would use the largest index of the batch."""
    call.allow("num_classes")
    call.single_batch()
    classes = call.value(1, "num_classes", -1)
    if type(classes) is not int or classes < 1:
        raise call.refuse("needs its number of classes")


def pad(call: Call) -> None:
    """Only dimensions after the batch dimension may grow."""
    call.allow("pad", "mode", "value")
    widths = call.value(1, "pad")
    if not isinstance(widths, (tuple, list)):
        raise call.refuse("is not known with these arguments")
    call.refuse_last(len(widths) // 2, *call.single_batch())


def layer_norm(call: Call) -> None:
    """Normalises over the last dimensions."""
    call.allow("normalized_shape", "weight", "bias", "eps", "cudnn_enable")
    shape = call.value(1, "normalized_shape")
    if not isinstance(shape, (tuple, list)):
        raise call.refuse("is not known with these arguments")
    call.refuse_last(len(shape), *call.single_batch())


def instance_norm(call: Call) -> None:
    """Running statistics would be those of all examples."""
    examples_first(3, 5)(call)
    running = call.value(1, "running_mean") is not None or call.value(2, "running_var") is not None
    if running or call.value(5, "use_input_stats", True) is not True:
        raise call.refuse("keeps statistics of all examples")


def batch_norm(call: Call) -> None:
    """Normalises over the examples."""
    raise call.refuse("mixes the examples of a batch")
