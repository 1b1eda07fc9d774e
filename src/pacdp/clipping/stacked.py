"""Clipped sums of many models in one tensor program.

The models may be those of several clients or of several grid cells, each with its own weights,
examples, clipping bound and noise. For plain sequences of layers (logistic regression, MLP, small
CNN). The results are those of the same models one by one, up to rounding.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from pacdp.clipping.bounded import ClippedSum, Tensors
from pacdp.clipping.examples import require_mask
from pacdp.clipping.flushing import run_flushed
from pacdp.clipping.numerics import (
    add_on_grid,
    check_clipping_bound,
    check_noise,
    clip_factors,
    grid_step,
    refuse_reduced_precision,
    shrink_bound,
    shrink_levels,
    smallest_ratio,
)
from pacdp.clipping.sequential import Parameters, as_sequential
from pacdp.errors import InputError
from pacdp.privacy import Adjacency
from pacdp.validation import FloatArray, require_positive


@dataclass(frozen=True)
class StackedLevels:
    """The budget levels of the examples of several models, and the bounds of each model's levels.

    ``ratios`` (models, levels) are C_j/C, public; ``index`` (models, examples) is the level of each
    example, private.
    """

    ratios: FloatArray
    index: Tensor

    def limits(self, bounds: FloatArray, examples: int) -> Tensor:
        """Return the norm to which each example is clipped: (models, examples)."""
        table = tabulate_limits(bounds, self.ratios, examples)
        return table.to(self.index.device).gather(1, self.index)


def tabulate_limits(bounds: FloatArray, ratios: FloatArray, examples: int) -> Tensor:
    """Return the norms to clip to, (..., levels), from bounds (...) and ratios (..., levels)."""
    return _tabulate(bounds.tobytes(), ratios.tobytes(), ratios.shape, examples)


# Bounds and batch sizes recur in every step of a round.
@lru_cache(maxsize=256)
def _tabulate(bounds: bytes, ratios: bytes, shape: tuple[int, ...], examples: int) -> Tensor:
    largest, relative = np.frombuffer(bounds).reshape(shape[:-1]), np.frombuffer(ratios)
    if not ((relative >= 0) & (relative <= 1)).all():
        raise InputError("levels: ratios must be from 0 to 1")
    limits = shrink_levels(largest, relative.reshape(shape), examples)
    return torch.from_numpy(limits).float()


@dataclass(frozen=True, kw_only=True)
class StackedSum:
    """Clipped sums of several models: values (models, ...), each with its own bound."""

    values: Tensors
    bounds: FloatArray
    adjacency: Adjacency
    levels: FloatArray | None = None
    """C_j/C of each model (models, levels), where examples have bounds of their own."""

    @property
    def sensitivities(self) -> FloatArray:
        """How far one example moves each model's sum, in L2."""
        return self.bounds * self.adjacency.sensitivity

    @property
    def smallest_sensitivities(self) -> FloatArray:
        """The smallest sensitivity of any level of each model, for which its grid is made."""
        if self.levels is None:
            return self.sensitivities
        return self.sensitivities * smallest_ratio(self.levels)

    def __getitem__(self, model: int) -> ClippedSum:
        """Return one model's sum, which carries its own sensitivity."""
        bound = float(self.bounds[model])
        return ClippedSum(
            values={name: value[model] for name, value in self.values.items()},
            bound=bound,
            sensitivity=bound * self.adjacency.sensitivity,
            adjacency=self.adjacency,
            levels=() if self.levels is None else tuple(self.levels[model].tolist()),
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
        sequential = as_sequential(module)
        if sequential is None:
            raise InputError(
                "module: cannot be stacked; must be a Linear, or a Sequential of Linear, Conv2d, "
                "ReLU, Tanh, MaxPool2d and Flatten, all trainable float32"
            )
        self.module = module
        self.sequential = sequential
        self.loss = loss
        self.adjacency = Adjacency.parse(adjacency)

    def parameters(self, *, models: int) -> dict[str, Tensor]:
        """Repeat the module's parameters for each model, to be trained separately."""
        return {
            name: parameter.detach().repeat(models, *[1] * parameter.ndim)
            for name, parameter in self.module.named_parameters()
        }

    def outputs(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Compute each model's outputs for its own examples: (models, examples, ...)."""
        with torch.no_grad():
            return self.sequential.outputs(parameters, inputs, lead=2)

    def __call__(
        self,
        parameters: Parameters,
        inputs: Tensor,
        targets: Tensor,
        *,
        clipping_bounds: ArrayLike,
        present: Tensor | None = None,
        levels: StackedLevels | None = None,
    ) -> StackedSum:
        """Compute the clipped sum of each model over its own examples.

        ``clipping_bounds`` holds one bound for each model, or one for all. ``present`` (models,
        examples) marks real examples where batches are unequal and padded. ``levels`` give the
        examples of a model different bounds.
        """
        models = len(inputs)
        bounds = require_positive("clipping_bounds", clipping_bounds)
        if bounds.shape not in ((), (models,)):
            raise InputError(
                f"clipping_bounds: has shape {bounds.shape}, must be one or {models} numbers"
            )
        bounds = np.array(np.broadcast_to(bounds, (models,)))
        for bound in {float(bounds.min()), float(bounds.max())} if models else ():
            check_clipping_bound("clipping_bounds", bound)
        refuse_reduced_precision()
        if not self.sequential.accepts(inputs.ndim - 2):
            raise InputError(
                f"inputs: has shape {tuple(inputs.shape)}, must be (models, examples, ...) with "
                "examples as the first layer takes them"
            )
        require_mask(present, tuple(inputs.shape[:2]))
        if levels is not None and levels.index.shape != inputs.shape[:2]:
            raise InputError("levels: must be one for each example of each model")
        if levels is None:
            limits = shrink_bound(torch.from_numpy(bounds), inputs.shape[1]).unsqueeze(1)
        else:
            limits = levels.limits(bounds, inputs.shape[1])

        def compute() -> Tensors:
            with torch.no_grad():
                norms, sums = self.sequential.gradients(
                    parameters, inputs, targets, self.loss, lead=2
                )
                factors = clip_factors(norms, limits.to(norms))
                values = sums(factors if present is None else factors * present)
                return {name: values[name] for name in parameters}

        return StackedSum(
            values=run_flushed(compute),
            bounds=bounds,
            adjacency=self.adjacency,
            levels=None if levels is None else levels.ratios,
        )


class StackedGrid:
    """The public grids of several models, and the scales of their noise in grid steps.

    All arrays have the same shape, for instance (models,).

    >>> from pacdp.clipping import CrossEntropy, SimulatedNoise
    >>> stacked = StackedGradient(nn.Linear(3, 2), CrossEntropy(), adjacency="zero-out")
    >>> inputs, targets = torch.randn(2, 6, 3), torch.zeros(2, 6, dtype=torch.long)
    >>> sums = stacked(stacked.parameters(models=2), inputs, targets, clipping_bounds=[0.5, 1.0])
    >>> grid = StackedGrid(sums.sensitivities, 2, z=np.array([2.0, 3.0]), divisors=np.full(2, 6.0))
    >>> sources = [SimulatedNoise(seed=0, client=client, round=0) for client in range(2)]
    >>> pairs = zip(sources, grid.scales.tolist(), strict=True)
    >>> noise = torch.stack([source.integers(2, scale) for source, scale in pairs])
    >>> grid.add_noise(sums.values["bias"], noise, sums=sums).shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        sensitivities: FloatArray,
        coordinates: int,
        *,
        z: FloatArray,
        divisors: FloatArray,
        smallest_sensitivities: FloatArray | None = None,
    ) -> None:
        """``smallest_sensitivities``: of the smallest level, where examples have levels."""
        self.sensitivities = sensitivities
        self.smallest_sensitivities = (
            sensitivities if smallest_sensitivities is None else smallest_sensitivities
        )
        check_noise(float((z * (sensitivities / self.smallest_sensitivities)).max()), coordinates)
        steps = grid_step(self.smallest_sensitivities, coordinates)
        # Never rounded down.
        self.scales = np.nextafter(z * sensitivities, np.inf) / steps
        self._steps, self._divisors = torch.from_numpy(steps), torch.from_numpy(divisors)

    def add_noise(self, clean: Tensor, noise: Tensor, *, sums: StackedSum, dim: int = -1) -> Tensor:
        """Add noise in whole grid steps to the values of the first models, and divide.

        Both tensors are overwritten. ``clean`` holds the values of ``sums``, flat, and ``dim`` is
        its dimension of a model's coordinates. Sums of other sensitivities than the noise was
        scaled for are refused.
        """
        models = len(clean)
        for own, given in (
            (self.sensitivities, sums.sensitivities),
            (self.smallest_sensitivities, sums.smallest_sensitivities),
        ):
            if not np.array_equal(given.ravel(), own[:models].ravel()):
                raise InputError(
                    "sums: their sensitivities are not those that the noise is scaled for"
                )
        if noise.shape != clean.shape:
            raise InputError(
                f"noise: has shape {tuple(noise.shape)}, must be {tuple(clean.shape)}: no two "
                "models may share a draw"
            )
        steps, divisors = (
            values[:models].unsqueeze(dim).to(clean.device)
            for values in (self._steps, self._divisors)
        )
        return add_on_grid(clean, noise, step=steps, divisor=divisors)
