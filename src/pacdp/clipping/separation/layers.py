"""Rules for torch layers: when a layer treats the examples of a batch separately.

Layers are known by their exact type: a subclass may do anything in its forward pass, so its forward
pass is traced instead. Each rule raises ``SeparationError`` unless no example can influence
another through the layer as it is set up and called.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from pacdp.clipping.separation.calls import (
    LayerCall,
    examples_first,
    leaves,
    one_batch,
    tensors_in,
)

LayerRule = Callable[[LayerCall], Any]
# More dimensions than any model uses.
_MANY = 9


def along(call: LayerCall) -> None:
    """Works along one dimension, given by the layer."""
    call.refuse_dimensions(call.layer.dim, *call.single_batch())


def flatten(call: LayerCall) -> None:
    """Only dimensions after that of the examples."""
    tensor, batch = call.single_batch()
    start = call.dimension(call.layer.start_dim, tensor.ndim)
    end = call.dimension(call.layer.end_dim, tensor.ndim)
    if start <= batch <= end and start != end:
        raise call.refuse("cuts the examples of a batch apart")


def unflatten(call: LayerCall) -> None:
    """Any dimension but that of the examples."""
    tensor, batch = call.single_batch()
    if call.dimension(call.layer.dim, tensor.ndim) == batch:
        raise call.refuse("cuts the examples of a batch apart")


def layer_norm(call: LayerCall) -> None:
    """Normalises over the last dimensions."""
    call.refuse_last(len(call.layer.normalized_shape), *call.single_batch())


def instance_norm(dimensions: int) -> LayerRule:
    """Running statistics would be those of all examples."""

    def rule(call: LayerCall) -> None:
        examples_first(dimensions)(call)
        if call.layer.track_running_stats or call.layer.running_mean is not None:
            raise call.refuse("keeps statistics of all examples")

    return rule


def embedding(call: LayerCall) -> None:
    """The table must not be changed by a lookup, nor gradients scaled by counts in the batch."""
    layer = call.layer
    if isinstance(layer, nn.EmbeddingBag):
        weights = call.keywords.get("per_sample_weights")
        tensors = [call.keywords["input"], *([] if weights is None else [weights])]
        if call.keywords.get("offsets") is not None or not all(
            isinstance(t, Tensor) and t.ndim == 2 and call.batch_of(t) == 0 for t in tensors
        ):
            raise call.refuse("is only known for rows of indices, without offsets")
    else:
        examples_first(1, _MANY)(call)
    if layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
        raise call.refuse("depends on all examples with max_norm, scale_grad_by_freq or sparse")


def bilinear(call: LayerCall) -> None:
    """Two batches of the same form."""
    for value in call.keywords.values():
        if call.batch_of(value) != 0 or value.ndim < 2:
            raise call.refuse("is only known for two batches")


def recurrent(call: LayerCall) -> None:
    """Time follows the examples in the input; in the states, layers precede them."""
    layer, steps, states = call.layer, call.keywords.get("input"), call.keywords.get("hx")
    if not layer.batch_first or not isinstance(steps, Tensor) or steps.ndim != 3:
        raise call.refuse("is only known with batch_first=True and a batch of sequences")
    if call.batch_of(steps) != 0:
        raise call.refuse("sees examples in another dimension than the first")
    if getattr(layer, "proj_size", 0):
        raise call.refuse("is not known with proj_size")
    for state in leaves(states):
        if state is not None and (call.batch_of(state) != 1 or state.ndim != 3):
            raise call.refuse("is only known with states of the form (layers, examples, features)")


_ACTIVATIONS = (F.relu, F.gelu, F.silu, F.elu, F.leaky_relu, torch.relu, torch.tanh, torch.sigmoid)
_SEQUENCES = ("query", "key", "value", "src", "tgt", "memory")


def attention(call: LayerCall) -> None:
    """Sequences and padding masks of each example, and nothing but known layers inside.

    A mask shared by all examples has no batch dimension and is refused: if its first dimension
    happens to be as long as the batch, the two cannot be told apart.
    """
    for name, value in call.keywords.items():
        dimensions = 3 if name in _SEQUENCES else 2 if name.endswith("padding_mask") else 0
        for tensor in tensors_in(value):
            if tensor is not value or call.batch_of(tensor) != 0 or tensor.ndim != dimensions:
                raise call.refuse(f"is not known with this argument {name}")
    for inner in call.layer.modules():
        if type(inner) not in _INSIDE_ATTENTION:
            raise call.refuse(f"is not known with {type(inner).__name__} inside")
        if isinstance(inner, nn.MultiheadAttention) and not inner.batch_first:
            raise call.refuse("is only known with batch_first=True")
        # A function is an attribute, while a layer is one of the modules checked above.
        activation = vars(inner).get("activation")
        if activation is not None and not any(activation is known for known in _ACTIVATIONS):
            raise call.refuse("has an activation that is not known to treat examples separately")


_ELEMENTWISE: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Tanhshrink, nn.Softplus, nn.Softshrink, nn.Softsign),
    *(nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Threshold, nn.Identity),
    *(nn.Dropout, nn.AlphaDropout),
)
ATTENTION: tuple[type[nn.Module], ...] = (
    *(nn.TransformerEncoder, nn.TransformerEncoderLayer),
    *(nn.TransformerDecoder, nn.TransformerDecoderLayer, nn.MultiheadAttention),
)
_INSIDE_ATTENTION: frozenset[type[nn.Module]] = frozenset(
    (
        *(*ATTENTION, NonDynamicallyQuantizableLinear, nn.ModuleList),
        *(nn.Linear, nn.LayerNorm, nn.RMSNorm, *_ELEMENTWISE),
    )
)

# Layers that take one more dimension for each dimension of an image: 1d, 2d and 3d.
_SPATIAL = (
    "Conv ConvTranspose Dropout MaxPool AvgPool LPPool AdaptiveMaxPool AdaptiveAvgPool "
    "ConstantPad ReflectionPad ReplicationPad ZeroPad CircularPad"
)
LAYERS: dict[type[nn.Module], LayerRule] = {
    **dict.fromkeys(_ELEMENTWISE, one_batch),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU), along),
    **dict.fromkeys((nn.Linear, nn.PReLU, nn.GroupNorm), examples_first(2, _MANY)),
    **dict.fromkeys(
        (nn.FeatureAlphaDropout, nn.LocalResponseNorm, nn.ChannelShuffle), examples_first(3, _MANY)
    ),
    **dict.fromkeys(
        (nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d), examples_first(3, 5)
    ),
    **dict.fromkeys(
        (nn.Softmax2d, nn.PixelShuffle, nn.PixelUnshuffle, nn.Unfold), examples_first(4)
    ),
    nn.Fold: examples_first(3),
    nn.Flatten: flatten,
    nn.Unflatten: unflatten,
    nn.Bilinear: bilinear,
    **dict.fromkeys((nn.Embedding, nn.EmbeddingBag), embedding),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), layer_norm),
    **dict.fromkeys((nn.RNN, nn.GRU, nn.LSTM), recurrent),
    **dict.fromkeys(ATTENTION, attention),
    **{
        getattr(nn, f"{kind}{number}d"): examples_first(number + 2)
        for number in (1, 2, 3)
        for kind in _SPATIAL.split()
    },
    **{getattr(nn, f"InstanceNorm{n}d"): instance_norm(n + 2) for n in (1, 2, 3)},
}
# Used to notice a forward that was replaced for all layers of a type.
FORWARDS = {kind: kind.forward for kind in LAYERS}


def check_layer(call: LayerCall) -> None:
    """Refuse a call of a known layer that is not known to treat examples separately.

    A trained layer must have the examples first in every tensor, because book-keeping splits its
    input along that dimension.
    """
    rule = LAYERS[type(call.layer)]
    if any(p.requires_grad for p in call.layer.parameters()) and rule is not recurrent:
        for value in call.keywords.values():
            if any(t is not value or call.batch_of(t) != 0 for t in tensors_in(value)):
                raise call.refuse("is trained, and sees a tensor without the examples in front")
    rule(call)
