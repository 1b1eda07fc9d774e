"""Rules that turn a layer's input and output gradients into per-example contributions.

A rule takes the layer, its input and the gradient of its output, both with examples first, and
returns one contribution for each of the layer's parameters. Layers without a rule go through
``torch.func``, which works for any module that ``vmap`` can run.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from pacdp.clipping.convolution import ConvolutionGradient
from pacdp.clipping.per_example import (
    Contribution,
    EmbeddingGradient,
    LinearGradient,
    MaterialisedGradient,
)
from pacdp.errors import InputError, first_line

Contributions = dict[str, Contribution]
Rule = Callable[[Any, Tensor, Tensor], Contributions]


def linear(layer: nn.Linear, inputs: Tensor, gradients: Tensor) -> Contributions:
    """Any number of dimensions between the examples and the features."""
    inputs = inputs.reshape(len(inputs), -1, inputs.shape[-1])
    gradients = gradients.reshape(len(gradients), -1, gradients.shape[-1])
    bias = MaterialisedGradient(gradients.sum(1))
    return {"weight": LinearGradient(inputs, gradients), "bias": bias}


def convolution(layer: nn.Conv1d | nn.Conv2d, inputs: Tensor, gradients: Tensor) -> Contributions:
    """One or two dimensions; a line is an image of height one."""
    padding = list(layer._reversed_padding_repeated_twice)
    if any(padding):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        inputs = F.pad(inputs, padding, mode=mode)
    bias = MaterialisedGradient(gradients.flatten(2).sum(2))
    line = inputs.ndim == 3
    if line:
        inputs, gradients = inputs.unsqueeze(2), gradients.unsqueeze(2)
    kernel, stride, dilation = (
        (1 if line else size[0], size[-1])
        for size in (layer.kernel_size, layer.stride, layer.dilation)
    )
    weight = ConvolutionGradient(inputs, gradients, kernel, stride, dilation, layer.groups)
    return {"weight": weight, "bias": bias}


def embedding(layer: nn.Embedding, indices: Tensor, gradients: Tensor) -> Contributions:
    """Rows by index; the padding row, if any, gets no gradient."""
    indices = indices.reshape(len(indices), -1)
    gradients = gradients.reshape(len(gradients), -1, gradients.shape[-1])
    if layer.padding_idx is not None:
        gradients = gradients * (indices != layer.padding_idx).unsqueeze(2)
    return {"weight": EmbeddingGradient(indices, gradients, layer.num_embeddings)}


def group_norm(layer: nn.GroupNorm, inputs: Tensor, gradients: Tensor) -> Contributions:
    """Scale and shift of each channel."""
    return _per_channel(F.group_norm(inputs, layer.num_groups, eps=layer.eps), gradients)


def instance_norm(layer: Any, inputs: Tensor, gradients: Tensor) -> Contributions:
    """Scale and shift of each channel."""
    return _per_channel(F.instance_norm(inputs, eps=layer.eps), gradients)


def layer_norm(layer: nn.LayerNorm, inputs: Tensor, gradients: Tensor) -> Contributions:
    """Scale and shift of each normalised position."""
    shape = tuple(layer.normalized_shape)
    normal = F.layer_norm(inputs, shape, eps=layer.eps)
    scale, shift = (
        MaterialisedGradient(values.reshape(len(values), -1, *shape).sum(1))
        for values in (normal * gradients, gradients)
    )
    return {"weight": scale, "bias": shift}


def _per_channel(normal: Tensor, gradients: Tensor) -> Contributions:
    shape = (*normal.shape[:2], -1)
    scale, shift = (
        MaterialisedGradient(values.reshape(shape).sum(2))
        for values in (normal * gradients, gradients)
    )
    return {"weight": scale, "bias": shift}


RULES: Mapping[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Embedding: embedding,
    nn.GroupNorm: group_norm,
    nn.LayerNorm: layer_norm,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), convolution),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), instance_norm),
}


def rule_for(layer: nn.Module) -> Rule | None:
    """Return the layer's rule, if there is one that covers how it is set up."""
    if isinstance(layer, nn.Embedding) and (
        layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    ):
        return None
    return RULES.get(type(layer))


def contributions_by_vmap(
    layer: nn.Module,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    gradients: tuple[Tensor | None, ...],
    size: int,
) -> Contributions:
    """Run each example through the layer by itself, vectorised: for layers without a rule.

    ``gradients`` belong to the layer's tensor outputs in order, None where the loss ignores one.
    Arguments are per example if their first dimension says so, such as padding masks.
    """
    parameters = {n: p.detach() for n, p in layer.named_parameters() if p.requires_grad}
    used = [number for number, gradient in enumerate(gradients) if gradient is not None]
    given: dict[Any, Any] = dict(enumerate(arguments)) | keywords
    examples = {
        place: value.detach()
        for place, value in given.items()
        if isinstance(value, Tensor) and value.ndim and len(value) == size
    }

    def differentiate(example: dict[Any, Tensor], cotangents: list[Tensor]) -> dict[str, Tensor]:
        values = given | {place: value.unsqueeze(0) for place, value in example.items()}
        positional = tuple(values[place] for place in range(len(arguments)))
        named = {name: values[name] for name in keywords}

        def forward(weights: dict[str, Tensor]) -> list[Tensor]:
            outputs = output_tensors(functional_call(layer, weights, positional, named))
            return [outputs[number].squeeze(0) for number in used]

        return dict(vjp(forward, parameters)[1](cotangents)[0])

    cotangents = [gradient for gradient in gradients if gradient is not None]
    try:
        # Of the kernels for attention, vmap supports only the plain one.
        with sdpa_kernel(SDPBackend.MATH):
            results = vmap(differentiate, randomness="different")(examples, cotangents)
    except RuntimeError as error:
        raise InputError(
            f"layer {type(layer).__name__}: has no rule of its own and torch.func cannot run it "
            f"example by example ({first_line(error)})"
        ) from error
    return {name: MaterialisedGradient(value.float()) for name, value in results.items()}


def output_tensors(output: Any) -> list[Tensor]:
    """List the floating-point tensors of an output, which may be a tuple, in order."""
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, (tuple, list)):
        return [tensor for part in output for tensor in output_tensors(part)]
    return []
