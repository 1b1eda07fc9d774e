"""Which layers of torch treat the examples of a batch separately, and under which conditions.

Layers are known by their exact type: a subclass may do anything in its forward pass, so its forward
pass is traced instead. Each rule raises ``SeparationError`` unless no example can influence
another through the layer as it is set up and called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from pacdp.clipping.separation_functions import SeparationError, leaves, refuse_dimension, resolve


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer: its arguments by name, and where the examples of a tensor are."""

    name: str
    layer: Any
    given: Mapping[str, Any]
    batch: Callable[[Tensor], int | None]

    def refuse(self, reason: str) -> SeparationError:
        """What to raise."""
        return SeparationError(f"layer {self.name} ({type(self.layer).__name__}): {reason}")

    def only(self) -> tuple[Tensor, int]:
        """The first argument, which must be the only tensor and a batch."""
        first = next(iter(self.given.values()), None)
        tensors = [value for value in leaves(dict(self.given)) if isinstance(value, Tensor)]
        batch = self.batch(first) if isinstance(first, Tensor) else None
        if not isinstance(first, Tensor) or batch is None or len(tensors) != 1:
            raise self.refuse("is only known with one batch as its argument")
        return first, batch


LayerRule = Callable[[LayerCall], None]


def elementwise(call: LayerCall) -> None:
    """Wherever the examples are."""
    call.only()


def ranked(least: int, most: int | None = None) -> LayerRule:
    """Examples first, and as many dimensions as the layer takes for a batch."""

    def rule(call: LayerCall) -> None:
        tensor, batch = call.only()
        if batch or not least <= tensor.ndim <= (least if most is None else most):
            raise call.refuse(
                f"is not known for {tensor.ndim} dimensions with the examples in dimension {batch}"
            )

    return rule


MANY = 9


def along(call: LayerCall) -> None:
    """Works along one dimension, given by the layer."""
    tensor, batch = call.only()
    refuse_dimension(type(call.layer).__name__, call.layer.dim, tensor, batch)


def flatten(call: LayerCall) -> None:
    """Only dimensions after the examples."""
    tensor, batch = call.only()
    start = resolve("Flatten", call.layer.start_dim, tensor.ndim)
    end = resolve("Flatten", call.layer.end_dim, tensor.ndim)
    if start <= batch <= end and start != end:
        raise call.refuse("cuts the examples of a batch apart")


def unflatten(call: LayerCall) -> None:
    """Any dimension but that of the examples."""
    tensor, batch = call.only()
    if resolve("Unflatten", call.layer.dim, tensor.ndim) == batch:
        raise call.refuse("cuts the examples of a batch apart")


def last_dimensions(call: LayerCall) -> None:
    """Normalises over the last dimensions."""
    tensor, batch = call.only()
    if batch >= tensor.ndim - len(call.layer.normalized_shape):
        raise call.refuse("normalises over the examples of a batch")


def instance_norm(dimensions: int) -> LayerRule:
    """Running statistics are those of all examples."""

    def rule(call: LayerCall) -> None:
        ranked(dimensions)(call)
        if call.layer.track_running_stats or call.layer.running_mean is not None:
            raise call.refuse("keeps statistics of all examples")

    return rule


def embedding(call: LayerCall) -> None:
    """The table must not be changed by a lookup, nor gradients scaled by counts in the batch."""
    layer = call.layer
    if isinstance(layer, nn.EmbeddingBag):
        weights = call.given.get("per_sample_weights")
        tensors = [call.given["input"], *([] if weights is None else [weights])]
        if call.given.get("offsets") is not None or not all(
            isinstance(t, Tensor) and t.ndim == 2 and call.batch(t) == 0 for t in tensors
        ):
            raise call.refuse("is only known for rows of indices, without offsets")
    else:
        ranked(1, MANY)(call)
    if layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse:
        raise call.refuse("depends on all examples with max_norm, scale_grad_by_freq or sparse")


def bilinear(call: LayerCall) -> None:
    """Two batches of the same form."""
    tensors = list(call.given.values())
    if not all(isinstance(t, Tensor) and call.batch(t) == 0 and t.ndim > 1 for t in tensors):
        raise call.refuse("is only known for two batches")


def recurrent(call: LayerCall) -> None:
    """Time after the examples in the input; the states have layers before them."""
    layer, steps, states = call.layer, call.given.get("input"), call.given.get("hx")
    if not layer.batch_first or not isinstance(steps, Tensor) or steps.ndim != 3:
        raise call.refuse("is only known with batch_first=True and a batch of sequences")
    if call.batch(steps) != 0:
        raise call.refuse("sees examples in another dimension than the first")
    if getattr(layer, "proj_size", 0):
        raise call.refuse("is not known with proj_size")
    for state in leaves(states):
        if state is not None and not (
            isinstance(state, Tensor) and state.ndim == 3 and call.batch(state) == 1
        ):
            raise call.refuse("is only known with states of the form (layers, examples, features)")


_ACTIVATIONS = (F.relu, F.gelu, F.silu, F.elu, F.leaky_relu, torch.relu, torch.tanh, torch.sigmoid)
_SEQUENCES = ("query", "key", "value", "src", "tgt", "memory")


def attention(call: LayerCall) -> None:
    """Sequences and padding masks of each example, and nothing but known layers inside.

    A mask shared by all examples has no batch dimension and is refused: if its first dimension
    happens to be as long as the batch, the two cannot be told apart.
    """
    for name, value in call.given.items():
        if isinstance(value, Tensor):
            dimensions = 3 if name in _SEQUENCES else 2 if name.endswith("padding_mask") else 0
            if call.batch(value) != 0 or value.ndim != dimensions:
                raise call.refuse(f"is not known with this argument {name}")
        elif any(isinstance(part, Tensor) for part in leaves(value)):
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

LAYERS: dict[type[nn.Module], LayerRule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys((nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU), along),
    nn.Softmax2d: ranked(4),
    nn.PReLU: ranked(2, MANY),
    nn.FeatureAlphaDropout: ranked(3, MANY),
    nn.Flatten: flatten,
    nn.Unflatten: unflatten,
    nn.Linear: ranked(2, MANY),
    nn.Bilinear: bilinear,
    nn.Embedding: embedding,
    nn.EmbeddingBag: embedding,
    nn.GroupNorm: ranked(2, MANY),
    nn.LayerNorm: last_dimensions,
    nn.RMSNorm: last_dimensions,
    nn.LocalResponseNorm: ranked(3, MANY),
    **dict.fromkeys((nn.RNN, nn.GRU, nn.LSTM), recurrent),
    **dict.fromkeys(ATTENTION, attention),
    **dict.fromkeys((nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d), ranked(3, 5)),
    nn.PixelShuffle: ranked(4),
    nn.PixelUnshuffle: ranked(4),
    nn.ChannelShuffle: ranked(3, MANY),
    nn.Unfold: ranked(4),
    nn.Fold: ranked(3),
    nn.ZeroPad2d: ranked(4),
}
for _number in (1, 2, 3):
    LAYERS |= {
        getattr(nn, f"{_kind}{_number}d"): ranked(_number + 2)
        for _kind in (
            *("Conv", "ConvTranspose", "Dropout"),
            *("MaxPool", "AvgPool", "LPPool", "AdaptiveMaxPool", "AdaptiveAvgPool"),
            *("ConstantPad", "ReflectionPad", "ReplicationPad", "ZeroPad", "CircularPad"),
        )
    }
    LAYERS[getattr(nn, f"InstanceNorm{_number}d")] = instance_norm(_number + 2)
# To notice a forward that was replaced for all layers of a type.
FORWARDS = {kind: kind.forward for kind in LAYERS}


def check_layer(call: LayerCall) -> None:
    """Refuse a call of a known layer if it is not shown to treat examples separately.

    A trained layer must have the examples first in every tensor: book-keeping splits its input
    along that dimension.
    """
    kind = type(call.layer)
    if any(p.requires_grad for p in call.layer.parameters()) and LAYERS[kind] is not recurrent:
        for value in call.given.values():
            nested = isinstance(value, (tuple, list, dict))
            if any(
                isinstance(part, Tensor) and (nested or call.batch(part) != 0)
                for part in leaves(value)
            ):
                raise call.refuse("is trained, and sees a tensor without the examples in front")
    LAYERS[kind](call)
