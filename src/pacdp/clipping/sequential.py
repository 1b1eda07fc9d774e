"""Plain sequences of layers with closed-form gradients, for one model or for many at once.

A logistic regression, an MLP or a small CNN is a sequence of steps whose gradients are known, so it
runs without autograd. With one more dimension in front of everything, the same steps train any
number of models in one tensor program, each with its own weights and its own examples: inputs are
then (models, examples, ...) and parameters (models, ...). ``lead`` is the number of dimensions
before those of an example: 1 for one model, 2 for a stack.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

from pacdp.clipping.convolution import patch_gradients, patch_windows
from pacdp.clipping.losses import Loss, loss_gradients
from pacdp.clipping.numerics import (
    norms,
    raw_norms,
    sum_products,
    sum_rows,
    zero_nonfinite,
    zero_nonfinite_,
)

Parameters = Mapping[str, Tensor]
# From weights, one per example, to Σ_i w_i·gradient_i of each of a step's parameters.
WeightedSums = Callable[[Tensor], dict[str, Tensor]]
# Gradients of the inputs, gradient norms per example, and weighted sums.
Backward = tuple[Tensor | None, Tensor | None, WeightedSums | None]
_ONE = torch.ones(())


class Step(Protocol):
    """One layer of the sequence."""

    def forward(self, parameters: Parameters, inputs: Tensor, lead: int) -> tuple[Tensor, Any]:
        """Compute the outputs, and what the backward pass needs."""

    def backward(
        self, parameters: Parameters, saved: Any, gradients: Tensor, onward: bool
    ) -> Backward:
        """Compute the gradients; those of the inputs only if ``onward``."""


@dataclass(frozen=True)
class LinearStep:
    """A Linear layer: inputs (..., B, I), weight (..., O, I)."""

    weight: str
    bias: str | None

    def forward(self, parameters: Parameters, inputs: Tensor, lead: int) -> tuple[Tensor, Tensor]:
        weight = parameters[self.weight]
        bias = None if self.bias is None else parameters[self.bias]
        if lead == 1:
            return F.linear(inputs, weight, bias), inputs
        if bias is None:
            return torch.bmm(inputs, weight.mT), inputs
        return torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT), inputs

    def backward(
        self, parameters: Parameters, saved: Tensor, gradients: Tensor, onward: bool
    ) -> Backward:
        # A bias is a weight whose input is one.
        example_norms = norms(saved) if self.bias is None else torch.hypot(raw_norms(saved), _ONE)
        example_norms *= norms(gradients)

        def sums(weights: Tensor) -> dict[str, Tensor]:
            scaled = zero_nonfinite_(gradients * weights.unsqueeze(-1))
            total = {self.weight: sum_products(scaled, zero_nonfinite(saved))}
            if self.bias is not None:
                total[self.bias] = sum_rows(scaled)
            return total

        return gradients @ parameters[self.weight] if onward else None, example_norms, sums


@dataclass(frozen=True)
class ConvolutionStep:
    """A Conv2d layer: inputs (..., B, C, H, W), weight (..., O, C, kh, kw).

    One model's outputs come from torch's own kernels, many models' from products of patches.
    """

    weight: str
    bias: str | None
    stride: tuple[int, int]
    padding: tuple[int, int]

    def forward(self, parameters: Parameters, inputs: Tensor, lead: int) -> tuple[Tensor, Any]:
        weight = parameters[self.weight]
        bias = None if self.bias is None else parameters[self.bias]
        images = inputs.flatten(0, lead - 1)
        high, wide = self.padding
        if high or wide:
            images = F.pad(images, (wide, wide, high, high))
        windows = patch_windows(images, weight.shape[-2:], self.stride)
        saved = (inputs.shape, windows)
        if lead == 1:
            # Channels last in memory make the pooling that follows faster.
            weight = weight.contiguous(memory_format=torch.channels_last)
            return F.conv2d(inputs, weight, bias, self.stride, self.padding), saved
        patches = windows.flatten(3).reshape(len(weight), -1, weight[0, 0].numel())
        outputs = torch.bmm(patches, weight.permute(0, 3, 4, 2, 1).flatten(1, 3))
        if bias is not None:
            outputs += bias[:, None]
        shape = (inputs.shape[1], *windows.shape[1:3])
        return outputs.unflatten(1, shape).permute(0, 1, 4, 2, 3), saved

    def backward(
        self, parameters: Parameters, saved: Any, gradients: Tensor, onward: bool
    ) -> Backward:
        shape, windows = saved
        weight = parameters[self.weight]
        front = gradients.shape[:-3]
        per_example = patch_gradients(windows, gradients.flatten(0, len(front) - 1))
        per_example = per_example.flatten(1).unflatten(0, front)
        example_norms = norms(per_example)
        shifts = gradients.sum((-2, -1)) if self.bias is not None else None
        if shifts is not None:
            example_norms = torch.hypot(example_norms, norms(shifts))

        def sums(weights: Tensor) -> dict[str, Tensor]:
            column = weights.unsqueeze(-1)
            *models, out, channels, high, wide = weight.shape
            total = sum_products(column, zero_nonfinite_(per_example))
            total = total.view(*models, out, high, wide, channels)
            result = {self.weight: total.movedim(-1, -3)}
            if self.bias is not None and shifts is not None:
                result[self.bias] = sum_products(column, zero_nonfinite_(shifts)).squeeze(-2)
            return result

        back = self._input_gradients(weight, shape, gradients) if onward else None
        return back, example_norms, sums

    def _input_gradients(self, weight: Tensor, shape: torch.Size, gradients: Tensor) -> Tensor:
        places = {"stride": self.stride, "padding": self.padding}
        if weight.ndim == 4:
            return conv2d_input(shape, weight, gradients, **places)
        columns = weight.flatten(2).mT.unsqueeze(1) @ gradients.flatten(3)
        images = F.fold(columns.flatten(0, 1), shape[-2:], weight.shape[-2:], **places)
        return images.unflatten(0, shape[:2])


@dataclass(frozen=True)
class PoolStep:
    """A MaxPool2d layer without overlap."""

    size: tuple[int, int]

    def forward(self, parameters: Parameters, inputs: Tensor, lead: int) -> tuple[Tensor, Any]:
        # torch is three times faster here with the channels last in memory.
        images = inputs.flatten(0, lead - 1).contiguous(memory_format=torch.channels_last)
        outputs, winners = F.max_pool2d(images, self.size, return_indices=True)
        return outputs.unflatten(0, inputs.shape[:lead]), (images, winners)

    def backward(
        self, parameters: Parameters, saved: Any, gradients: Tensor, onward: bool
    ) -> Backward:
        images, winners = saved
        front = gradients.shape[:-3]
        flat = gradients.flatten(0, len(front) - 1)
        back = torch.ops.aten.max_pool2d_with_indices_backward(
            flat.contiguous(memory_format=torch.channels_last),
            *(images, self.size, self.size, (0, 0), (1, 1), False, winners),
        )
        return back.unflatten(0, front), None, None


@dataclass(frozen=True)
class ActivationStep:
    """An elementwise function whose gradient follows from its output.

    ``slope`` maps (gradients, outputs) to the gradients of the inputs.
    """

    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]

    def forward(self, parameters: Parameters, inputs: Tensor, lead: int) -> tuple[Tensor, Tensor]:
        outputs = self.function(inputs)
        return outputs, outputs

    def backward(
        self, parameters: Parameters, saved: Tensor, gradients: Tensor, onward: bool
    ) -> Backward:
        return self.slope(gradients, saved), None, None


@dataclass(frozen=True)
class FlattenStep:
    """Everything after the examples in one dimension."""

    def forward(
        self, parameters: Parameters, inputs: Tensor, lead: int
    ) -> tuple[Tensor, torch.Size]:
        return inputs.flatten(lead), inputs.shape

    def backward(
        self, parameters: Parameters, saved: torch.Size, gradients: Tensor, onward: bool
    ) -> Backward:
        return gradients.reshape(saved), None, None


@dataclass(frozen=True)
class SequentialModel:
    """A model as a sequence of steps; its parameters are named as the module's."""

    steps: Sequence[Step]

    def accepts(self, example_dimensions: int) -> bool:
        """Whether an example of so many dimensions meets each layer as the steps expect it.

        torch applies a Linear layer to the last of any number of dimensions; a step does not.
        """
        dimensions = example_dimensions
        for step in self.steps:
            if isinstance(step, FlattenStep) and dimensions:
                dimensions = 1
            elif (isinstance(step, LinearStep) and dimensions != 1) or (
                isinstance(step, ConvolutionStep | PoolStep) and dimensions != 3
            ):
                return False
        return True

    def outputs(self, parameters: Parameters, inputs: Tensor, *, lead: int) -> Tensor:
        """Compute the models' outputs for their own examples."""
        for step in self.steps:
            inputs, _ = step.forward(parameters, inputs, lead)
        return inputs

    def gradients(
        self, parameters: Parameters, inputs: Tensor, targets: Tensor, loss: Loss, *, lead: int
    ) -> tuple[Tensor, WeightedSums]:
        """Compute gradient norms per example, and the weighted sums of all parameters."""
        saved = []
        for step in self.steps:
            inputs, kept = step.forward(parameters, inputs, lead)
            saved.append(kept)
        back: Tensor | None = loss_gradients(loss, inputs, targets, lead=lead)
        first = next(n for n, step in enumerate(self.steps) if hasattr(step, "weight"))
        total: Tensor | None = None
        parts: list[WeightedSums] = []
        for number in range(len(self.steps) - 1, first - 1, -1):
            assert back is not None
            back, example_norms, sums = self.steps[number].backward(
                parameters, saved[number], back, number > first
            )
            if example_norms is not None and sums is not None:
                total = example_norms if total is None else torch.hypot(total, example_norms)
                parts.append(sums)
        assert total is not None
        return total, lambda weights: {k: v for sums in parts for k, v in sums(weights).items()}


def as_sequential(module: nn.Module) -> SequentialModel | None:
    """Return the module as a sequence of known steps, or None if it is anything else.

    >>> as_sequential(nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 1))) is not None
    True
    >>> as_sequential(nn.GRU(4, 2)) is None
    True
    """
    layers: list[tuple[str, nn.Module]] = [("", module)] if type(module) is nn.Linear else []
    if type(module) is nn.Sequential:
        # Not named_children, which leaves out a layer that comes a second time.
        layers = [
            (f"{name}.", layer) for name, layer in module._modules.items() if layer is not None
        ]
    parameters = list(module.parameters())
    if not layers or not all(p.requires_grad and p.dtype == torch.float32 for p in parameters):
        return None
    tied = len(parameters) != sum(1 for _ in module.named_parameters(remove_duplicate=False))
    steps = [_make_step(name, layer) for name, layer in layers]
    if tied or not parameters or None in steps or any(map(is_modified, module.modules())):
        return None
    return SequentialModel(_move_pooling_forward([step for step in steps if step is not None]))


def is_modified(layer: nn.Module) -> bool:
    """Whether hooks, or a forward of this instance alone, change what the layer does."""
    hooks = (
        *(layer._forward_hooks, layer._forward_pre_hooks),
        *(layer._backward_hooks, layer._backward_pre_hooks),
    )
    return any(hooks) or "forward" in layer.__dict__


def _move_pooling_forward(steps: list[Step]) -> list[Step]:
    """Pool before an activation: increasing functions commute with maxima, and it is cheaper."""
    for n in range(len(steps) - 1):
        if isinstance(steps[n], ActivationStep) and isinstance(steps[n + 1], PoolStep):
            steps[n], steps[n + 1] = steps[n + 1], steps[n]
    return steps


def _make_step(name: str, layer: nn.Module) -> Step | None:
    """Return the step of a layer; None for a layer or settings that are not covered."""
    kind = type(layer)
    bias = f"{name}bias" if getattr(layer, "bias", None) is not None else None
    if kind is nn.Linear:
        return LinearStep(f"{name}weight", bias)
    if isinstance(layer, nn.Conv2d) and kind is nn.Conv2d:
        plain = layer.groups == 1 and _pair(layer.dilation) == (1, 1)
        if not plain or layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            return None
        return ConvolutionStep(f"{name}weight", bias, _pair(layer.stride), _pair(layer.padding))
    if isinstance(layer, nn.MaxPool2d) and kind is nn.MaxPool2d:
        settings = (layer.stride, layer.padding, layer.dilation)
        size, *others = map(_pair, (layer.kernel_size, *settings))
        plain = others == [size, (0, 0), (1, 1)] and not layer.ceil_mode
        return PoolStep(size) if plain else None
    if isinstance(layer, nn.Flatten) and kind is nn.Flatten:
        return FlattenStep() if (layer.start_dim, layer.end_dim) == (1, -1) else None
    if kind is nn.ReLU:
        return ActivationStep(torch.relu, lambda g, y: torch.ops.aten.threshold_backward(g, y, 0))
    if kind is nn.Tanh:
        return ActivationStep(torch.tanh, lambda g, y: g * (1 - y * y))
    return None


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
