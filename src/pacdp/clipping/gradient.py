"""Clipped sums of per-example gradients, at the price of an ordinary training step.

One forward pass notes what went into each layer; one backward pass finds the gradient of what came
out of it, and no weight gradients. From the two follow every example's gradient norm, and the sum
over examples, each scaled to at most C (book-keeping; Bu et al. 2023). Nothing is trusted to the
order in which a model uses its layers: a layer called twice and weights tied between layers are
added up before their norm is taken, and a parameter that is used where no layer can see it is
refused by name.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pacdp.checks import count, positive_number, word
from pacdp.clipping.bounded import ClippedSum, clip_factors
from pacdp.clipping.chain import Chain, altered, as_chain, one_per_example
from pacdp.clipping.contributions import Contribution, Together, by_unit
from pacdp.clipping.recording import Use, collect, recording, refuse_changes
from pacdp.clipping.stacked import model_sum
from pacdp.clipping.validation import require_private
from pacdp.errors import InputError
from pacdp.privacy import Adjacency

# From a model's output and the targets, one loss for each example.
Loss = Callable[[Any, Any], Tensor]

# How far the sum of per-example gradients may be from the gradient, relative to their norms.
TOLERANCE, TOLERANCE_OF_HALF = 1e-3, 5e-2
# How often a path is verified at most, while some parameter has had no gradient to compare.
VERIFICATIONS = 5


class ClippedGradient:
    """Clipped sums for one module and one loss, as values that carry their sensitivity.

    Formal guarantee: whatever the examples, replacing one by a null example moves the sum by at
    most C in L2 over all parameters together, and swapping one for another by at most 2C, up to
    rounding of the sum itself. Examples whose gradient is not finite contribute zero.

    ``loss`` must return one value per example, such as ``F.cross_entropy(..., reduction="none")``.
    The sum is a sum, not a mean: divide by a public number when it is released. ``microbatch``
    bounds memory by taking so many examples at a time.

    ``unit`` names what is clipped as one. With anything but ``record``, such as ``patient``, each
    call must say which examples belong together; a sum never claims to cover more than it does.

    >>> from torch.nn import functional as F
    >>> model = nn.Linear(2, 2)
    >>> gradient = ClippedGradient(
    ...     model, lambda out, y: F.cross_entropy(out, y, reduction="none"), adjacency="zero-out"
    ... )
    >>> total = gradient(torch.randn(8, 2), torch.zeros(8, dtype=torch.long), clipping_bound=0.5)
    >>> sorted(total.values), total.sensitivity
    (['bias', 'weight'], 0.5)
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        adjacency: Adjacency | str,
        microbatch: int | None = None,
        unit: str = "record",
    ) -> None:
        self.module = module
        self.loss = loss
        self.adjacency = Adjacency.parse(adjacency)
        self.unit = word("unit", unit)
        self.microbatch = None if microbatch is None else int(count("microbatch", microbatch))
        self._prepare()

    def __call__(
        self, inputs: Any, targets: Any, *, clipping_bound: float, units: Any = None
    ) -> ClippedSum:
        """Σ_i g_i·min(1, C/‖g_i‖) over the examples of a batch, which may be empty.

        ``units``, one whole number for each example, says which belong together: then g_i is the
        sum over the examples of unit i, and ``microbatch`` counts units, too.
        """
        if (units is None) != (self.unit == "record"):
            raise InputError(
                f"units: {'are missing' if units is None else 'were given'}, but one {self.unit} "
                "at a time is clipped"
            )
        bound = positive_number("clipping_bound", clipping_bound)
        self._look_again()
        size = batch_size(inputs)
        step = self.microbatch or max(size, 1)
        total: dict[str, Tensor] = {}
        dropped = 0
        numbers = None if units is None else _from_zero(torch.as_tensor(units), size)
        for start in range(0, size if numbers is None else _most(numbers), step):
            whole = step >= size
            part: slice | Tensor = slice(start, start + step)
            if numbers is not None and not whole:
                # Whole units, whatever order their examples come in.
                part = torch.nonzero((numbers >= start) & (numbers < start + step)).flatten()
            found, bad = self._sum(
                inputs if whole else part_of(inputs, part),
                targets if whole else part_of(targets, part),
                bound,
                None if numbers is None else _from_zero(numbers if whole else numbers[part]),
            )
            dropped += bad
            total = {n: total[n] + v for n, v in found.items()} if total else found
        if not total:
            total = self._zeros()
        return ClippedSum(
            values=total,
            bound=bound,
            sensitivity=bound * self.adjacency.sensitivity,
            adjacency=self.adjacency,
            unit=self.unit,
            not_finite=dropped,
        )

    @property
    def chain(self) -> Chain | None:
        """The module as a plain sequence of known layers, none of which is random, if it is one."""
        self._look_again()
        return self._chain

    def norms(self, inputs: Any, targets: Any, *, units: Any = None) -> Tensor:
        """Each example's (or unit's) gradient norm. Nothing derived from it may leave unpaid.

        >>> from pacdp.clipping import CrossEntropy
        >>> gradient = ClippedGradient(nn.Linear(2, 2), CrossEntropy(), adjacency="zero-out")
        >>> gradient.norms(torch.randn(8, 2), torch.zeros(8, dtype=torch.long)).shape
        torch.Size([8])
        """
        self._look_again()
        size = batch_size(inputs)
        if not size:
            return torch.zeros(0)
        contributions = self._contributions(inputs, targets)
        if units is not None:
            numbers = _from_zero(torch.as_tensor(units), size)
            contributions = {name: by_unit(use, numbers) for name, use in contributions.items()}
        return _squared_norms(contributions).sqrt()

    def _look_again(self) -> None:
        """Notice what has been done to the module since: a stale view of it would be silent."""
        if not _unchanged(self._seen) or (self._chain and any(map(altered, self._layers))):
            self._prepare()

    def _prepare(self) -> None:
        """Look at the module: what is trained, and whether it is a chain."""
        require_private(self.module)
        self._trainable = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        self._chain = as_chain(self.module)
        self._seen = _parts(self.module)
        self._layers = list(self.module.modules())
        # For each path through the model: how often it was verified, and which parameters moved.
        self._verified: dict[tuple[str, ...], tuple[int, frozenset[str]]] = {}

    def _sum(
        self, inputs: Any, targets: Any, bound: float, units: Tensor | None
    ) -> tuple[dict[str, Tensor], int]:
        """The clipped sum of a micro-batch, and how many of its gradients were not finite."""
        if units is None and self._chain is not None and _fits(self._chain, inputs):
            with torch.no_grad():
                return model_sum(
                    self._chain, self._trainable, inputs, targets, self.loss, bound=bound
                )
        contributions = self._contributions(inputs, targets)
        if not contributions:
            return self._zeros(), 0
        if units is not None:
            contributions = {name: by_unit(use, units) for name, use in contributions.items()}
        squares = _squared_norms(contributions)
        bad = ~torch.isfinite(squares)
        if bad.any():
            # Zero times NaN is NaN, so they are taken out. The batch is not run again without
            # them: it would draw other dropout masks, and one record would move all others.
            contributions = {name: use.without(bad) for name, use in contributions.items()}
        factors = clip_factors(squares.masked_fill(bad, 0), bound)
        total = {}
        for name, parameter in self._trainable.items():
            # Taken out as it is summed, so that what it kept can be freed.
            contribution = contributions.pop(name, None)
            if contribution is None:
                total[name] = torch.zeros_like(parameter, dtype=torch.float32)
            else:
                total[name] = contribution.weighted_sum(factors).reshape(parameter.shape)
        return total, int(bad.sum())

    def _zeros(self) -> dict[str, Tensor]:
        return {
            name: torch.zeros_like(p, dtype=torch.float32) for name, p in self._trainable.items()
        }

    def _contributions(self, inputs: Any, targets: Any) -> dict[str, Contribution]:
        """What each trainable parameter gets from each example."""
        size = batch_size(inputs)
        if not size:
            return {}
        uses, losses = self._forward(inputs, targets)
        path = tuple(use.layer for use in uses)
        times, moved = self._verified.get(path, (0, frozenset()))
        if times < VERIFICATIONS and len(moved) < len(self._trainable):
            # How often it is verified depends on the records; what dropout draws must not.
            with torch.random.fork_rng():
                found = self._verify(inputs, targets)
            self._verified[path] = times + 1, moved | found
        return self._collected(uses, losses)

    def _forward(self, inputs: Any, targets: Any) -> tuple[list[Use], Tensor]:
        if torch.is_inference_mode_enabled():
            raise InputError("torch.inference_mode: has no gradients; leave it for training")
        size = batch_size(inputs)
        with recording(self.module, size) as uses, torch.enable_grad():
            outputs = self.module(*inputs) if isinstance(inputs, tuple) else self.module(inputs)
            losses = one_per_example(self.loss(outputs, targets), size)
        refuse_changes(uses)
        return uses, losses

    def _collected(self, uses: Sequence[Use], losses: Tensor) -> dict[str, Contribution]:
        names = {id(parameter): name for name, parameter in self._trainable.items()}
        collected = collect(self.module, uses, losses, names)
        return {
            name: found[0] if len(found) == 1 else Together(found)
            for name, found in collected.items()
        }

    def _verify(self, inputs: Any, targets: Any) -> set[str]:
        """Hold the sum of per-example gradients against ordinary autograd, on a few examples.

        It finds what no rule foresees: a weight used behind its layer's back, a layer that draws
        its own random numbers, a first dimension that only happened to have the size of the batch.
        Answers with the parameters that had a gradient, and so were really put to the test.
        """
        size = batch_size(inputs)
        # Another number of examples than the batch has.
        few = torch.arange(min(size - 1, 4)) if size > 1 else torch.tensor([0, 0])
        uses, losses = self._forward(part_of(inputs, few), part_of(targets, few))
        if losses.grad_fn is None:
            return set(self._trainable)
        whole = torch.autograd.grad(
            losses.sum(), list(self._trainable.values()), retain_graph=True, allow_unused=True
        )
        gradients = {
            name: torch.zeros_like(parameter) if gradient is None else gradient
            for (name, parameter), gradient in zip(self._trainable.items(), whole, strict=True)
        }
        norms = {name: float(g.float().norm()) for name, g in gradients.items()}
        contributions = self._collected(uses, losses)
        scale = math.fsum(norms.values())
        if contributions:
            scale += float(_squared_norms(contributions).sqrt().sum())
        if not math.isfinite(scale):
            return set()
        for name, gradient in gradients.items():
            error = gradient.float()
            if name in contributions:
                made = contributions[name].weighted_sum(torch.ones(len(few), device=error.device))
                error = error - made.reshape(error.shape)
            half = torch.finfo(gradient.dtype).bits < 32
            if float(error.norm()) > (TOLERANCE_OF_HALF if half else TOLERANCE) * scale:
                raise InputError(
                    f"parameter {name}: gradients of examples do not add up to the gradient; it is "
                    "used outside its own layer's forward, or in a layer without a rule that "
                    "draws random numbers"
                )
        return {name for name, norm in norms.items() if norm > 1e-3 * scale / len(norms)}


# Where each part of a module hangs: where it is looked up, under which name, what was found
# there, and whether it was trainable.
Parts = list[tuple[dict[str, Any], str, Any, bool]]


def _parts(module: nn.Module) -> Parts:
    """Every submodule and parameter in its place."""
    return [
        (held, name, value, getattr(value, "requires_grad", False))
        for owner in module.modules()
        for held in (owner._modules, owner._parameters)
        for name, value in held.items()
    ]


def _unchanged(parts: Parts) -> bool:
    """Whether nothing has been replaced, frozen or unfrozen since."""
    return all(
        held.get(name) is value and getattr(value, "requires_grad", False) is trainable
        for held, name, value, trainable in parts
    )


def _squared_norms(contributions: dict[str, Contribution]) -> Tensor:
    squares = [contribution.squared_norms() for contribution in contributions.values()]
    return torch.stack(squares).sum(0)


def _fits(chain: Chain, inputs: Any) -> bool:
    """Whether the chain can take these inputs as they are; a slower way takes all others."""
    return (
        isinstance(inputs, Tensor) and inputs.dtype == torch.float32 and chain.fits(inputs.ndim - 1)
    )


def _from_zero(units: Tensor, size: int | None = None) -> Tensor:
    """The units of some examples as 0, 1, 2, ... without gaps."""
    fits = units.ndim == 1 and not units.is_floating_point() and units.dtype != torch.bool
    if not fits or (size is not None and len(units) != size):
        raise InputError(
            f"units: is {units.dtype} of shape {tuple(units.shape)}, must be one whole number for "
            "each example"
        )
    return torch.unique(units, return_inverse=True)[1]


def _most(numbers: Tensor) -> int:
    return int(numbers.max()) + 1 if len(numbers) else 0


def batch_size(inputs: Any) -> int:
    """The number of examples in a tensor, or in a tuple of tensors."""
    first = inputs[0] if isinstance(inputs, tuple) else inputs
    return len(first)


def part_of(values: Any, part: slice | Tensor) -> Any:
    """Some of the examples of a tensor, or of a tuple of tensors."""
    if isinstance(values, tuple):
        return tuple(value[part] for value in values)
    return values[part]
