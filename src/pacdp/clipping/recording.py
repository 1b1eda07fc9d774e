"""Records what goes into the layers of a model, and computes what follows from it per example."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pacdp.clipping.layers import Contributions, contributions_by_vmap, output_tensors, rule_for
from pacdp.clipping.per_example import Contribution, LinearGradient, MaterialisedGradient
from pacdp.clipping.recurrent import RECURRENT, Record, unroll
from pacdp.errors import InputError


@dataclass(frozen=True)
class LayerUse:
    """One use of a layer: where its output gradients come from, and what follows from them.

    ``inputs`` are kept for the backward pass, with their versions to notice a change in place.
    """

    layer: str
    edges: list[GradientEdge]
    contributions: Callable[[list[Tensor | None]], Contributions]
    inputs: list[tuple[Tensor, int]]


@contextmanager
def record_uses(module: nn.Module, size: int) -> Iterator[list[LayerUse]]:
    """Record every use of a layer with trainable parameters during a forward pass."""
    uses: list[LayerUse] = []
    undo: list[Callable[[], None]] = []
    try:
        # A layer that is registered in two places is still one layer.
        layers = {id(layer): (name, layer) for name, layer in _trained_layers(module)}
        for name, layer in layers.values():
            # A forward of this instance alone takes precedence over the unrolled one.
            if type(layer) in RECURRENT and "forward" not in layer.__dict__:
                assert isinstance(layer, RECURRENT)
                layer.forward = unroll(layer, _linear_recorder(uses, name, size))  # type: ignore[assignment]
                undo.append(lambda layer=layer: delattr(layer, "forward"))  # type: ignore[misc]
            else:
                # Before other hooks, which may change the output.
                handle = layer.register_forward_hook(
                    _layer_recorder(uses, name, size), with_kwargs=True, prepend=True
                )
                undo.append(handle.remove)
        yield uses
    finally:
        for action in undo:
            action()


def _trained_layers(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Iterate over the outermost modules that own trainable parameters."""
    if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from _trained_layers(child, f"{name}.{child_name}" if name else child_name)


def _require_examples_first(layer: str, tensor: Tensor, size: int) -> None:
    if tensor.ndim == 0 or len(tensor) != size:
        raise InputError(
            f"layer {layer or '(the model)'}: sees a tensor of shape {tuple(tensor.shape)}, "
            f"whose first dimension must be the {size} examples"
        )


def _layer_recorder(uses: list[LayerUse], name: str, size: int) -> Callable[..., None]:
    """Return a forward hook that records one layer."""

    def hook(
        layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any
    ) -> None:
        rule = rule_for(layer)
        tensors = [value for value in (*arguments, *keywords.values()) if isinstance(value, Tensor)]
        outputs = output_tensors(output)
        for tensor in [*(value for value in arguments if isinstance(value, Tensor)), *outputs]:
            _require_examples_first(name, tensor, size)
        edges = [get_gradient_edge(tensor) for tensor in outputs if tensor.requires_grad]
        if not edges:
            return

        def contributions(gradients: list[Tensor | None]) -> Contributions:
            if rule is None:
                return contributions_by_vmap(layer, arguments, keywords, tuple(gradients), size)
            assert gradients[0] is not None
            return rule(layer, _to_single(tensors[0].detach()), _to_single(gradients[0]))

        inputs = [(tensor, tensor._version) for tensor in tensors]
        uses.append(LayerUse(name, edges, contributions, inputs))

    return hook


def _linear_recorder(uses: list[LayerUse], layer: str, size: int) -> Record:
    """Return a function that records the linear maps of a recurrent layer over its time steps."""

    def record(weight: str, bias: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        _require_examples_first(layer, inputs[0], size)

        def contributions(gradients: list[Tensor | None]) -> Contributions:
            complete = [
                torch.zeros_like(output) if gradient is None else gradient
                for gradient, output in zip(gradients, outputs, strict=True)
            ]
            # The inputs come as one sequence, the hidden states step by step.
            whole = inputs[0].ndim == 3
            steps = _to_single((inputs[0] if whole else torch.stack(inputs, 1)).detach())
            back = _to_single(complete[0] if whole else torch.stack(complete, 1))
            return {weight: LinearGradient(steps, back), bias: MaterialisedGradient(back.sum(1))}

        if all(output.requires_grad for output in outputs):
            edges = [get_gradient_edge(output) for output in outputs]
            versions = [(tensor, tensor._version) for tensor in inputs]
            uses.append(LayerUse(layer, edges, contributions, versions))

    return record


def refuse_changes(uses: Sequence[LayerUse]) -> None:
    """Refuse a pass in which a layer's input was changed in place afterwards."""
    for use in uses:
        if any(tensor._version != version for tensor, version in use.inputs):
            raise InputError(
                f"layer {use.layer or '(the model)'}: its input is changed in place later in the "
                "forward pass; use the out-of-place operation"
            )


def collect_contributions(
    module: nn.Module,
    uses: Sequence[LayerUse],
    outputs: Tensor,
    back: Tensor,
    names: dict[int, str],
) -> dict[str, list[Contribution]]:
    """Run the backward pass, and list what each use contributes by parameter.

    ``back`` is the gradient of the losses by the model's outputs; ``names`` are those of the
    trainable parameters, by identity.
    """
    edges: list[Any] = [edge for use in uses for edge in use.edges]
    if not edges:
        return {}
    gradients: list[Tensor | None] = []
    gradients += torch.autograd.grad(outputs, edges, back.to(outputs.dtype), allow_unused=True)
    collected: dict[str, list[Contribution]] = {}
    position = 0
    for use in uses:
        place = slice(position, position + len(use.edges))
        position = place.stop
        output_gradients = gradients[place]
        # Removed from the list, so that they are freed once the layer has used them.
        gradients[place] = [None] * len(use.edges)
        if all(gradient is None for gradient in output_gradients):
            continue
        layer = module.get_submodule(use.layer)
        parameters = dict(layer.named_parameters(remove_duplicate=False))
        for name, contribution in use.contributions(output_gradients).items():
            # Rules cover a bias that the layer may not have, and parameters may be frozen.
            if name in parameters and id(parameters[name]) in names:
                collected.setdefault(names[id(parameters[name])], []).append(contribution)
    return collected


def _to_single(tensor: Tensor) -> Tensor:
    """Convert to single precision, in which sums are taken whatever the model computes in."""
    return tensor.float() if tensor.is_floating_point() else tensor
