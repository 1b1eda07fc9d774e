"""Many models in one tensor program: clients and grid cells, each with its own weights,
examples, thresholds and noise.

For models that are chains (logistic regression, MLP, small CNN). The results are those of the same
models one by one, to rounding.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from pacdp.checks import FloatArray, positive
from pacdp.clipping.bounded import ClippedSum, Tensors, clip_factors, noised, refuse_lost
from pacdp.clipping.chain import Chain, Parameters, as_chain
from pacdp.clipping.noise import NoiseSource
from pacdp.errors import InputError
from pacdp.privacy import Adjacency


@dataclass(frozen=True, kw_only=True)
class StackedSum:
    """Clipped sums of several models: values (models, ...), each with its own bound."""

    values: Tensors
    bounds: Tensor
    adjacency: Adjacency
    not_finite: Mapping[int, int]
    """How many examples were not finite, of models that had any. For the client's eyes only."""

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, model: int) -> ClippedSum:
        """One model's sum, which carries its own sensitivity."""
        bound = float(self.bounds[model])
        return ClippedSum(
            values={name: value[model] for name, value in self.values.items()},
            bound=bound,
            sensitivity=bound * self.adjacency.sensitivity,
            adjacency=self.adjacency,
            not_finite=self.not_finite.get(model, 0),
        )


class StackedGradient:
    """Clipped sums of many models of one architecture at once.

    >>> from pacdp.clipping.losses import CrossEntropy
    >>> stacked = StackedGradient(nn.Linear(3, 2), CrossEntropy(), adjacency="zero-out")
    >>> parameters = stacked.parameters(models=5)
    >>> inputs, targets = torch.randn(5, 8, 3), torch.zeros(5, 8, dtype=torch.long)
    >>> sums = stacked(parameters, inputs, targets, clipping_bounds=[0.1, 0.2, 0.5, 1.0, 2.0])
    >>> sums.values["weight"].shape, sums[3].sensitivity
    (torch.Size([5, 2, 3]), 1.0)
    """

    def __init__(self, module: nn.Module, loss: Any, *, adjacency: Adjacency | str) -> None:
        chain = as_chain(module)
        if chain is None:
            raise InputError(
                "module: cannot be stacked; must be a Linear, or a Sequential of Linear, Conv2d, "
                "ReLU, Tanh, MaxPool2d and Flatten, all trainable float32"
            )
        self.module = module
        self.chain = chain
        self.loss = loss
        self.adjacency = Adjacency.parse(adjacency)

    def parameters(self, *, models: int) -> dict[str, Tensor]:
        """The module's parameters, repeated for each model, to be trained apart."""
        return {
            name: parameter.detach().repeat(models, *[1] * parameter.ndim)
            for name, parameter in self.module.named_parameters()
        }

    def outputs(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """What each model answers to its own examples: (models, examples, ...)."""
        with torch.no_grad():
            return self.chain.outputs(parameters, inputs, lead=2)

    def __call__(
        self,
        parameters: Parameters,
        inputs: Tensor,
        targets: Tensor,
        *,
        clipping_bounds: ArrayLike,
        present: Tensor | None = None,
    ) -> StackedSum:
        """The clipped sum of each model over its own examples.

        ``present`` (models, examples) marks real examples where batches are unequal and padded.
        """
        models = len(inputs)
        bounds = torch.tensor(
            _for_each("clipping_bounds", clipping_bounds, models),
            device=inputs.device,
            dtype=torch.float32,
        )
        if not self.chain.fits(inputs.ndim - 2):
            raise InputError(
                f"inputs: has shape {tuple(inputs.shape)}, must be (models, examples, ...) with "
                "examples as the first layer takes them"
            )
        if present is not None and (
            present.dtype != torch.bool or present.shape != inputs.shape[:2]
        ):
            raise InputError(
                f"present: is {present.dtype} of shape {tuple(present.shape)}, must be bool of "
                f"shape {tuple(inputs.shape[:2])}"
            )
        with torch.no_grad():
            values, dropped = stack_sum(
                *(self.chain, parameters, inputs, targets, self.loss),
                bounds=bounds,
                present=present,
            )
        return StackedSum(
            values=values,
            bounds=bounds,
            adjacency=self.adjacency,
            not_finite=dropped,
        )


def _for_each(name: str, value: ArrayLike, models: int) -> FloatArray:
    """A positive number for each model, from one for all or from as many."""
    array = positive(name, value)
    if array.shape not in ((), (models,)):
        raise InputError(f"{name}: has shape {array.shape}, must be one or {models} numbers")
    return np.array(np.broadcast_to(array, (models,)))


def stack_sum(
    chain: Chain,
    parameters: Parameters,
    inputs: Tensor,
    targets: Tensor,
    loss: Any,
    *,
    bounds: Tensor,
    present: Tensor | None,
) -> tuple[dict[str, Tensor], dict[int, int]]:
    """Clipped sums (models, ...), and how many examples were not finite of models that had any."""
    squares, sums = chain.gradients(parameters, inputs, targets, loss, lead=2)
    factors = clip_factors(squares, bounds.unsqueeze(1))
    if present is not None:
        factors *= present
    found = sums(factors)
    values = {name: found[name] for name in parameters}
    dropped: dict[int, int] = {}
    if math.isfinite(squares.sum().item()):
        return values, dropped
    for model in torch.nonzero(~torch.isfinite(squares).all(1)).flatten().tolist():
        # Zero times NaN is NaN: this model's sum is taken again by itself.
        own = {name: value[model] for name, value in parameters.items()}
        counted = slice(None) if present is None else present[model]
        again, dropped[model] = model_sum(
            *(chain, own, inputs[model][counted], targets[model][counted], loss),
            bound=float(bounds[model]),
        )
        for name, value in again.items():
            values[name][model] = value
    return values, dropped


def model_sum(
    chain: Chain,
    parameters: Parameters,
    inputs: Tensor,
    targets: Tensor,
    loss: Any,
    *,
    bound: float,
) -> tuple[dict[str, Tensor], int]:
    """The clipped sum of one model, and how many of its examples were not finite."""
    squares, sums = chain.gradients(parameters, inputs, targets, loss, lead=1)
    # One number tells that all are finite; where it is not, their sum alone may be too large.
    kept = None if math.isfinite(squares.sum().item()) else torch.isfinite(squares)
    if kept is None or bool(kept.all()):
        found = sums(clip_factors(squares, bound))
        return {name: found[name] for name in parameters}, 0
    again, more = model_sum(chain, parameters, inputs[kept], targets[kept], loss, bound=bound)
    return again, more + int((~kept).sum())


def release_stacked(
    sums: StackedSum, *, z: ArrayLike, divisors: ArrayLike, noise: Sequence[NoiseSource]
) -> dict[str, Tensor]:
    """Each model's release with its own noise, as :func:`~pacdp.clipping.release` makes it.

    >>> from pacdp.clipping import SimulatedNoise
    >>> from pacdp.clipping.losses import CrossEntropy
    >>> stacked = StackedGradient(nn.Linear(3, 2), CrossEntropy(), adjacency="zero-out")
    >>> inputs, targets = torch.randn(2, 8, 3), torch.zeros(2, 8, dtype=torch.long)
    >>> sums = stacked(stacked.parameters(models=2), inputs, targets, clipping_bounds=1.0)
    >>> noise = [SimulatedNoise(seed=0, client=c, round=0, step=0) for c in range(2)]
    >>> release_stacked(sums, z=[1.0, 5.0], divisors=8, noise=noise)["bias"].shape
    torch.Size([2, 2])
    """
    models = len(sums)
    if not sums.values:
        raise InputError("sums: are used up, they have been released before")
    if len(noise) != models:
        raise InputError(f"noise: has {len(noise)} sources, must have one for each of {models}")
    scales = 1 / _for_each("divisors", divisors, models)
    sensitivities = sums.bounds.cpu().double().numpy() * sums.adjacency.sensitivity
    sigmas = _for_each("z", z, models) * sensitivities * scales
    refuse_lost(float(sigmas.min()))
    released = {}
    for name in list(sums.values):
        clean = sums.values.pop(name)
        rows = zip(clean, sigmas.tolist(), scales.tolist(), noise, strict=True)
        released[name] = torch.stack(
            [noised(row, sigma=sigma, scale=scale, noise=own) for row, sigma, scale, own in rows]
        )
    return released
