"""What the layers of a model saw during a forward pass, and what follows from it per example."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pacdp.clipping.layers import Contributions, by_vmap, output_tensors, rule_for
from pacdp.clipping.per_example import Contribution, Outer, Rows
from pacdp.clipping.recurrent import RECURRENT, Record, unrolled
from pacdp.errors import InputError


@dataclass(frozen=True)
class Use:
    """One use of a layer: where its output gradients come from, and what follows from them."""

    layer: str
    edges: list[GradientEdge]
    contributions: Callable[[list[Tensor | None]], Contributions]
    watched: list[tuple[Tensor, int]]
    """Tensors kept for later, and their versions: an in-place change would falsify them."""


@contextmanager
def recording(module: nn.Module, size: int) -> Iterator[list[Use]]:
    """Note every use of a layer with trainable parameters during a forward pass."""
    uses: list[Use] = []
    undo: list[Callable[[], None]] = []
    try:
        # A layer that hangs in two places is still one layer.
        layers = {id(layer): (name, layer) for name, layer in _layers(module)}
        for name, layer in layers.values():
            # Whoever wrote a forward of their own for it means that one.
            own = type(layer) not in RECURRENT or "forward" in layer.__dict__
            if isinstance(layer, RECURRENT) and not own:
                layer.forward = unrolled(layer, _linear_recorder(uses, name, size))  # type: ignore[assignment]
                undo.append(lambda layer=layer: delattr(layer, "forward"))  # type: ignore[misc]
            else:
                # First in the row: other hooks may change the output.
                handle = layer.register_forward_hook(
                    _hook(uses, name, size), with_kwargs=True, prepend=True
                )
                undo.append(handle.remove)
        yield uses
    finally:
        for action in undo:
            action()


def _layers(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules that own trainable parameters."""
    if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from _layers(child, f"{name}.{child_name}" if name else child_name)


def _examples_first(layer: str, tensor: Tensor, size: int) -> None:
    if tensor.ndim == 0 or len(tensor) != size:
        raise InputError(
            f"layer {layer or '(the model)'}: sees a tensor of shape {tuple(tensor.shape)}, "
            f"whose first dimension must be the {size} examples"
        )


def _hook(uses: list[Use], name: str, size: int) -> Callable[..., None]:
    def hook(
        layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any
    ) -> None:
        rule = rule_for(layer)
        tensors = [value for value in (*arguments, *keywords.values()) if isinstance(value, Tensor)]
        outputs = output_tensors(output)
        for tensor in [*(value for value in arguments if isinstance(value, Tensor)), *outputs]:
            _examples_first(name, tensor, size)
        edges = [get_gradient_edge(tensor) for tensor in outputs if tensor.requires_grad]
        if not edges:
            return

        def contributions(gradients: list[Tensor | None]) -> Contributions:
            if rule is None:
                return by_vmap(layer, arguments, keywords, tuple(gradients), size)
            assert gradients[0] is not None
            return rule(layer, _single(tensors[0].detach()), _single(gradients[0]))

        watched = [(tensor, tensor._version) for tensor in tensors]
        uses.append(Use(name, edges, contributions, watched))

    return hook


def _linear_recorder(uses: list[Use], layer: str, size: int) -> Record:
    """Records the linear maps of a recurrent layer: time steps are positions."""

    def record(weight: str, bias: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        _examples_first(layer, inputs[0], size)

        def contributions(gradients: list[Tensor | None]) -> Contributions:
            made = [
                torch.zeros_like(output) if gradient is None else gradient
                for gradient, output in zip(gradients, outputs, strict=True)
            ]
            # The inputs come as one sequence, the hidden states step by step.
            whole = inputs[0].ndim == 3
            seen = _single((inputs[0] if whole else torch.stack(inputs, 1)).detach())
            back = _single(made[0] if whole else torch.stack(made, 1))
            return {weight: Outer(seen, back), bias: Rows(back.sum(1))}

        if all(output.requires_grad for output in outputs):
            watched = [(tensor, tensor._version) for tensor in inputs]
            edges = [get_gradient_edge(output) for output in outputs]
            uses.append(Use(layer, edges, contributions, watched))

    return record


def refuse_changes(uses: Sequence[Use]) -> None:
    """Refuse a pass in which what a layer saw was changed in place afterwards."""
    for use in uses:
        if any(tensor._version != version for tensor, version in use.watched):
            raise InputError(
                f"layer {use.layer or '(the model)'}: its input is changed in place later in the "
                "forward pass; use the out-of-place operation"
            )


def collect(
    module: nn.Module,
    uses: Sequence[Use],
    outputs: Tensor,
    back: Tensor,
    names: dict[int, str],
) -> dict[str, list[Contribution]]:
    """Run the backward pass and sort what each use contributes by parameter.

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
        own = gradients[place]
        # Held by nobody else once its layer has used it.
        gradients[place] = [None] * len(use.edges)
        position = place.stop
        if all(gradient is None for gradient in own):
            continue
        layer = module.get_submodule(use.layer)
        held = dict(layer.named_parameters(remove_duplicate=False))
        for name, contribution in use.contributions(own).items():
            # A layer without a bias has none to contribute to, and a frozen one wants nothing.
            if name in held and id(held[name]) in names:
                collected.setdefault(names[id(held[name])], []).append(contribution)
    return collected


def _single(tensor: Tensor) -> Tensor:
    """Sums are taken in single precision, whatever the model computes in."""
    return tensor.float() if tensor.is_floating_point() else tensor
