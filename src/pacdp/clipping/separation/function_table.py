"""The torch functions that are known to treat examples separately, each with its rule."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pacdp.clipping.separation import functions as rules
from pacdp.clipping.separation.calls import Rule, examples_first, one_batch

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
_ARITHMETIC = "add sub mul truediv div floordiv mod pow and or xor"
_OTHER_OPERATORS = "neg pos abs invert eq ne lt le gt ge"
_OPERATORS = (
    *(f"__{name}__" for name in (*_ARITHMETIC.split(), *_OTHER_OPERATORS.split())),
    *(f"__r{name}__" for name in _ARITHMETIC.split()),
)
_REDUCTIONS = (
    "sum nansum mean nanmean amax amin prod any all argmax argmin logsumexp var std var_mean "
    "std_mean median nanmedian count_nonzero cumsum cumprod logcumsumexp cummax cummin softmax "
    "log_softmax softmin"
)

_ANYWHERE = (torch, F, Tensor, torch._C._nn)
_BOTH = (torch, Tensor)
# The names of functions, the rule that they share, and where torch offers them.
_TABLE: tuple[tuple[str | Iterable[str], Rule, tuple[Any, ...]], ...] = (
    (_ELEMENTWISE, rules.elementwise, _ANYWHERE),
    (_OPERATORS, rules.elementwise, (Tensor,)),
    ([f"{name}_" for name in _ELEMENTWISE.split()], rules.in_place, _ANYWHERE),
    ([f"__i{name}__" for name in _ARITHMETIC.split()], rules.in_place, (Tensor,)),
    ("float double half bfloat16 long int short bool contiguous", one_batch, (Tensor,)),
    ("clone detach zeros_like ones_like full_like as_tensor", one_batch, _BOTH),
    ("transpose swapaxes swapdims permute movedim moveaxis t", one_batch, _BOTH),
    ("to type type_as", rules.conversion, (Tensor,)),
    ("where", rules.where, _BOTH),
    ("max min", rules.extremum, _BOTH),
    (_REDUCTIONS, rules.along(1), _ANYWHERE),
    ("sort argsort mode glu", rules.along(1, -1), _ANYWHERE),
    ("topk kthvalue", rules.along(2, -1), _ANYWHERE),
    ("norm", rules.along(2), _BOTH),
    ("vector_norm", rules.along(2), (torch.linalg,)),
    ("normalize", rules.along(2, 1), (F,)),
    ("cosine_similarity", rules.similarity, _ANYWHERE),
    ("chunk split tensor_split", rules.along(2, 0), _BOTH),
    ("unbind", rules.along(1, 0), _BOTH),
    ("roll", rules.along(2, None, "dims"), _BOTH),
    ("narrow select", rules.along(1), _BOTH),
    ("unfold", rules.along(1, None, "dimension"), (Tensor,)),
    ("index_select", rules.along(1, None, "dim", "index"), _BOTH),
    ("gather", rules.gather, _BOTH),
    ("flip", rules.flip, _BOTH),
    ("view reshape flatten unflatten unsqueeze", rules.reshape, _BOTH),
    ("squeeze", rules.squeeze, _BOTH),
    ("expand repeat", rules.expand, (Tensor,)),
    ("zeros ones full", rules.fill, (torch,)),
    ("new_zeros new_ones new_full", rules.fill, (Tensor,)),
    ("cat concat concatenate stack", rules.concatenate, (torch,)),
    ("__getitem__", rules.index, (Tensor,)),
    ("tril triu", rules.across_last(2, "diagonal"), _BOTH),
    ("linear", rules.across_last(1, "weight", "bias"), (F,)),
    ("matmul mm bmm __matmul__ __rmatmul__", rules.matmul, _BOTH),
    ("einsum", rules.einsum, (torch,)),
    ("scaled_dot_product_attention", rules.attention, (F,)),
    ("embedding", rules.embedding, (F,)),
    ("one_hot", rules.one_hot, (F,)),
    *(
        (
            f"conv{n}d conv_transpose{n}d dropout{n}d max_pool{n}d avg_pool{n}d lp_pool{n}d "
            f"adaptive_max_pool{n}d adaptive_avg_pool{n}d max_pool{n}d_with_indices "
            f"adaptive_max_pool{n}d_with_indices",
            examples_first(n + 2),
            (torch, F),
        )
        for n in (1, 2, 3)
    ),
    ("interpolate upsample local_response_norm feature_alpha_dropout", examples_first(3, 5), (F,)),
    ("pixel_shuffle pixel_unshuffle channel_shuffle unfold", examples_first(4), (F,)),
    ("fold", examples_first(3), (F,)),
    ("pad", rules.pad, (F,)),
    ("layer_norm rms_norm", rules.layer_norm, (torch, F)),
    ("group_norm", examples_first(2, 5), (torch, F)),
    ("instance_norm", rules.instance_norm, (F,)),
    ("batch_norm", rules.batch_norm, (torch, F)),
)
# Keyed by the function object that torch reports, so that no other function of that name matches.
FUNCTIONS: dict[Any, tuple[str, Rule]] = {
    getattr(namespace, name): (name, rule)
    for names, rule, namespaces in _TABLE
    for name in (names.split() if isinstance(names, str) else names)
    for namespace in namespaces
    if hasattr(namespace, name)
}
# Functions whose result may be a constant, although an argument is a batch.
FILLING = frozenset({"zeros", "ones", "full", "new_zeros", "new_ones", "new_full"})
# Functions that may be given the number of examples as a size.
TAKING_SIZES = FILLING | {"view", "reshape", "expand", "repeat"}
