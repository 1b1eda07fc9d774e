"""Clipped sums of per-example gradients, at about the price of an ordinary training step.

One forward pass notes what went into each layer; one backward pass finds the gradient of what came
out of it, and no weight gradients. From the two follow every example's gradient norm, and the sum
over examples, each scaled to at most C (book-keeping; Bu et al. 2023). A layer called twice and
weights tied between layers are added up before their norm is taken.

That is private only if no example can influence another one's gradient. So a model takes this path
only if its forward pass is shown to treat examples separately (:mod:`pacdp.clipping.separation`).
Any other model runs on each example by itself, which is slower and needs no such proof.

Apart from the numbers themselves, everything about a computation depends only on public facts:
which path is taken, and the shapes, order and number of operations. An example whose gradient is
not finite contributes zero, through the same operations as any other. Paths are chosen and tested
on synthetic examples.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from pacdp.clipping.bounded import ClippedSum
from pacdp.clipping.compatibility import require_private
from pacdp.clipping.flushing import run_flushed
from pacdp.clipping.losses import Loss, loss_gradients, require_one_per_example, vmap_or_loop
from pacdp.clipping.numerics import (
    BLOCK,
    SUM_ERROR,
    UNIT_SINGLE,
    check_clipping_bound,
    clip_factors,
    shrink_bound,
)
from pacdp.clipping.per_example import Contribution, Rows, Together, by_unit
from pacdp.clipping.recording import Use, collect, recording, refuse_changes
from pacdp.clipping.separation import ModelState, find_mixing
from pacdp.clipping.sequential import Chain, WeightedSums, as_chain, is_modified
from pacdp.errors import InputError
from pacdp.privacy import Adjacency
from pacdp.validation import count, word

# How far the sum of per-example gradients may be from the gradient, relative to their norms.
TOLERANCE, TOLERANCE_OF_HALF = 1e-3, 5e-2
# How many numbers of gradients are materialised at once where each example runs by itself.
LARGEST_BLOCK = 2**24


@dataclass(frozen=True)
class Gradients:
    """What is known of the gradients of some examples (or units)."""

    lengths: Tensor
    """Norms; not finite where the gradient is not."""
    rounding: Tensor | None
    """n·L of sums over positions, as in ``Contribution``; None where there are none."""
    sums: WeightedSums

    def clipped_sum(
        self, bound: float, *, examples: int, sums: int, present: Tensor | None
    ) -> dict[str, Tensor]:
        """Σ f_i·g_i with clip factors f_i that keep one example's influence, rounded, within C.

        The whole sum is over ``examples`` examples, in ``sums`` partial sums; this is one part.
        """
        lengths = self.lengths
        if self.rounding is not None:
            # Clipped harder where the terms of a gradient cancel so much that rounding matters.
            scale = 2.01 * UNIT_SINGLE * min(len(lengths), BLOCK) / SUM_ERROR
            lengths = torch.maximum(lengths, scale * self.rounding)
        factors = clip_factors(lengths, shrink_bound(bound, examples, sums=sums))
        return self.sums(factors if present is None else factors * present)


@dataclass(frozen=True)
class Path:
    """How the examples of a batch are computed, and why."""

    description: str
    chain: Chain | None = None
    separately: bool = False
    """Whether each example runs by itself."""


class ClippedGradient:
    """Clipped sums for one module and one loss, as values that carry their sensitivity.

    Formal guarantee: whatever the examples and the weights, replacing one example by a null example
    moves the sum, as it is rounded to the public grid when released, by at most C in L2 over all
    parameters together, and swapping one for another by at most 2C. This holds for the arithmetic
    that runs (``docs/numerics.md``). Examples whose gradient is not finite contribute zero.

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
        self,
        inputs: Any,
        targets: Any,
        *,
        clipping_bound: float,
        units: Any = None,
        present: Tensor | None = None,
    ) -> ClippedSum:
        """Σ_i g_i·min(1, C/‖g_i‖) over the examples of a batch, which may be empty.

        ``units``, one whole number for each example, says which belong together: then g_i is the
        sum over the examples of unit i, and ``microbatch`` counts units, too. ``present``, a
        boolean for each example (or unit, in the order of their numbers), says which are included:
        the others are computed as well and contribute zero, so that nobody can tell which they are.
        """
        bound = check_clipping_bound("clipping_bound", clipping_bound)
        numbers = self._unit_numbers(units, batch_size(inputs))
        size = batch_size(inputs) if numbers is None else _highest(numbers)
        if present is not None and (present.dtype != torch.bool or present.shape != (size,)):
            raise InputError(
                f"present: is {present.dtype} of shape {tuple(present.shape)}, must be bool of "
                f"shape ({size},)"
            )
        path = self._checked_path(inputs, targets)
        values = run_flushed(
            partial(self._sum, path, inputs, targets, numbers, present, bound=bound, size=size)
        )
        return ClippedSum(
            values=values,
            bound=bound,
            sensitivity=bound * self.adjacency.sensitivity,
            adjacency=self.adjacency,
            unit=self.unit,
        )

    @property
    def chain(self) -> Chain | None:
        """The module as a plain sequence of known, deterministic layers; None if it is not one."""
        self._look_again()
        return self._chain

    def check(self, inputs: Any, targets: Any) -> str:
        """Choose and test how examples of these shapes and types are computed; says which way.

        Only shapes and types are read: the test runs on synthetic examples, once for each
        combination. A model that cannot be trained privately is refused here, before anything is
        paid for.

        >>> from pacdp.clipping import CrossEntropy
        >>> gradient = ClippedGradient(nn.Linear(2, 2), CrossEntropy(), adjacency="zero-out")
        >>> gradient.check(torch.randn(8, 2), torch.zeros(8, dtype=torch.long))
        'all examples at once: a plain sequence of known layers'
        """
        return self._checked_path(inputs, targets).description

    def norms(self, inputs: Any, targets: Any, *, units: Any = None) -> Tensor:
        """Each example's (or unit's) gradient norm. Nothing derived from it may leave unpaid.

        >>> from pacdp.clipping import CrossEntropy
        >>> gradient = ClippedGradient(nn.Linear(2, 2), CrossEntropy(), adjacency="zero-out")
        >>> gradient.norms(torch.randn(8, 2), torch.zeros(8, dtype=torch.long)).shape
        torch.Size([8])
        """
        numbers = self._unit_numbers(units, batch_size(inputs))
        size = batch_size(inputs) if numbers is None else _highest(numbers)
        path = self._checked_path(inputs, targets)

        def compute() -> list[Tensor]:
            parts = _split(inputs, targets, numbers, size, self._step(path, size))
            return [self._gradients(path, *part).lengths for _, part in parts]

        found = run_flushed(compute)
        return torch.cat(found) if found else torch.zeros(0)

    def _look_again(self) -> None:
        """Notice what has been done to the module since: a stale view of it would be silent."""
        if not _unchanged(self._seen) or any(map(is_modified, self._layers)) != self._altered:
            self._prepare()

    def _prepare(self) -> None:
        """Look at the module: what is trained, and whether it is a chain."""
        require_private(self.module)
        self._trainable = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        self._chain = as_chain(self.module)
        self._seen = _parts(self.module)
        self._layers = list(self.module.modules())
        self._altered = any(map(is_modified, self._layers))
        self._paths: dict[Any, Path] = {}

    def _unit_numbers(self, units: Any, size: int) -> Tensor | None:
        if (units is None) != (self.unit == "record"):
            raise InputError(
                f"units: {'are missing' if units is None else 'were given'}, but one {self.unit} "
                "at a time is clipped"
            )
        return None if units is None else _from_zero(torch.as_tensor(units), size)

    def _sum(
        self,
        path: Path,
        inputs: Any,
        targets: Any,
        numbers: Tensor | None,
        present: Tensor | None,
        *,
        bound: float,
        size: int,
    ) -> dict[str, Tensor]:
        """The clipped sum over all parts of a batch."""
        total: dict[str, Tensor] = {}
        step = self._step(path, size)
        for place, part in _split(inputs, targets, numbers, size, step):
            found = self._gradients(path, *part).clipped_sum(
                bound,
                examples=size,
                sums=-(-size // step) * -(-min(step, size) // BLOCK),
                present=None if present is None else present[place],
            )
            total = {n: total[n].double().add_(v) for n, v in found.items()} if total else found
        return {
            name: total[name] if name in total else torch.zeros_like(parameter, dtype=torch.float32)
            for name, parameter in self._trainable.items()
        }

    def _step(self, path: Path, size: int) -> int:
        """How many examples (or units) are computed at once."""
        step = self.microbatch or max(size, 1)
        if path.separately:
            numbers = sum(parameter.numel() for parameter in self._trainable.values())
            step = min(step, max(1, LARGEST_BLOCK // max(numbers, 1)))
        return step

    def _gradients(
        self, path: Path, inputs: Any, targets: Any, units: Tensor | None, unit_count: int
    ) -> Gradients:
        """What is known of the gradients of some examples, or of the units they belong to."""
        if path.chain is not None:
            with torch.no_grad():
                lengths, sums = path.chain.gradients(
                    self._trainable, inputs, targets, self.loss, lead=1
                )
            return Gradients(lengths, None, sums)
        compute = self._alone if path.separately else self._recorded
        contributions = compute(inputs, targets)
        if units is not None:
            contributions = {
                name: by_unit(use, units, unit_count) for name, use in contributions.items()
            }
        size = batch_size(inputs) if units is None else unit_count
        return _join(contributions, size, self._trainable)

    def _recorded(self, inputs: Any, targets: Any) -> dict[str, Contribution]:
        """Each parameter's per-example gradients, from one pass over the whole batch."""
        uses, outputs = self._forward(inputs)
        if outputs.grad_fn is None:
            return {}
        back = loss_gradients(self.loss, outputs.detach(), targets)
        return self._contributions(uses, outputs, back)

    def _contributions(
        self, uses: Sequence[Use], outputs: Tensor, back: Tensor
    ) -> dict[str, Contribution]:
        names = {id(parameter): name for name, parameter in self._trainable.items()}
        collected = collect(self.module, uses, outputs, back, names)
        return {
            name: found[0] if len(found) == 1 else Together(found)
            for name, found in collected.items()
        }

    def _forward(self, inputs: Any) -> tuple[list[Use], Any]:
        with recording(self.module, batch_size(inputs)) as uses, torch.enable_grad():
            outputs = self.module(*inputs) if isinstance(inputs, tuple) else self.module(inputs)
        refuse_changes(uses)
        return uses, outputs

    def _alone(self, inputs: Any, targets: Any, *, strict: bool = False) -> dict[str, Contribution]:
        """Each parameter's per-example gradients, with each example run by itself."""
        trained = {name: parameter.detach() for name, parameter in self._trainable.items()}

        def loss_of_one(parameters: dict[str, Tensor], given: Any, target: Any) -> Tensor:
            module = copy_apart(self.module)
            arguments = given if isinstance(given, tuple) else (given,)
            outputs = functional_call(module, parameters, tuple(a[None] for a in arguments))
            own = tuple(t[None] for t in target) if isinstance(target, tuple) else target[None]
            return require_one_per_example(self.loss(outputs, own), 1).sum()

        found = vmap_or_loop(
            partial(grad(loss_of_one), trained),
            (inputs, targets),
            lambda: {name: torch.full_like(value, torch.nan) for name, value in trained.items()},
            strict=strict,
        )
        return {name: Rows(gradient.float().contiguous()) for name, gradient in found.items()}

    def _checked_path(self, inputs: Any, targets: Any) -> Path:
        """How examples of these shapes and types are computed, chosen once for each combination."""
        refuse_reduced_precision()
        if torch.is_inference_mode_enabled():
            raise InputError("torch.inference_mode: has no gradients; must be off for training")
        self._look_again()
        key = (self.module.training, *map(_signature, (inputs, targets)))
        if key not in self._paths:
            self._paths[key] = self._choose_path(inputs, targets)
        return self._paths[key]

    def _choose_path(self, inputs: Any, targets: Any) -> Path:
        if self._chain is not None and _fits(self._chain, inputs) and self.unit == "record":
            known = "all examples at once: a plain sequence of known layers"
            return Path(known, chain=self._chain)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return self._tested_path(*synthetic_examples(self.module, inputs, targets))

    def _tested_path(self, inputs: Any, targets: Any) -> Path:
        """The path of a model that is no chain, tested on synthetic examples."""
        try:
            module = copy.deepcopy(self.module)
        except Exception as error:
            reason = f"it cannot be copied to be tested ({_first_line(error)})"
            return self._separate_path(inputs, targets, reason)
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.requires_grad:
                    # Layers that are initialised to zero would hide what comes before them.
                    parameter.add_(0.1 * torch.randn_like(parameter))
        engine = copy.copy(self)
        engine.module = module
        engine._prepare()
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        obstacle = find_mixing(module, arguments) or engine._find_wrong_rule(inputs, targets)
        if obstacle is None:
            return Path("all examples at once: shown to treat examples separately")
        return engine._separate_path(inputs, targets, obstacle)

    def _separate_path(self, inputs: Any, targets: Any, reason: str) -> Path:
        """Each example by itself, if the model can; one that visibly mixes examples is refused.

        So is one that writes to variables outside of itself, which would carry information from one
        example to the next. What it writes into itself does not: each example runs on a copy.
        """
        state = ModelState(self.module)
        written = False
        try:
            refuse_mixing(copy_apart(self.module), inputs)
            # Other examples the second time: a variable may already have had the value written.
            for part in (slice(None), slice(1)):
                self._alone(part_of(inputs, part), part_of(targets, part), strict=True)
                written |= state.changed()
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"model: has no gradient for one example alone ({_first_line(error)}); examples "
                "must not need each other"
            ) from error
        if written:
            raise InputError(
                "model: its forward pass writes to a variable outside of it, which could carry "
                "information from one example to another; must keep its state in attributes"
            )
        return Path(f"each example by itself: {reason}", separately=True)

    def _find_wrong_rule(self, inputs: Any, targets: Any) -> str | None:
        """Compare with ordinary autograd on synthetic examples; names a parameter that differs.

        This catches what no rule covers: a layer that draws its own random numbers, or a first
        dimension that merely happened to have the size of the batch.
        """
        try:
            uses, outputs = self._forward(inputs)
        except InputError as error:
            return str(error)
        if not isinstance(outputs, Tensor):
            return f"it returns {type(outputs).__name__}, not one tensor"
        back = loss_gradients(self.loss, outputs.detach(), targets)
        if outputs.grad_fn is None:
            return None
        weights = 0.5 + torch.rand(len(outputs), device=outputs.device)
        expected = torch.autograd.grad(
            outputs,
            list(self._trainable.values()),
            (back * weights.reshape(-1, *[1] * (back.ndim - 1))).to(outputs.dtype),
            retain_graph=True,
            allow_unused=True,
        )
        try:
            contributions = self._contributions(uses, outputs, back)
        except InputError as error:
            return str(error)
        scale = float(_join(contributions, len(outputs), self._trainable).lengths.sum())
        for (name, parameter), gradient in zip(self._trainable.items(), expected, strict=True):
            whole = torch.zeros_like(parameter) if gradient is None else gradient
            difference = whole.float()
            if name in contributions:
                summed = contributions[name].weighted_sum(weights)
                difference = difference - summed.reshape(difference.shape)
            half = torch.finfo(parameter.dtype).bits < 32
            largest = max(scale, float(whole.float().norm()), 1e-30)
            # Not >, so that NaN fails.
            if not float(difference.norm()) <= (TOLERANCE_OF_HALF if half else TOLERANCE) * largest:
                return (
                    f"parameter {name}: gradients of examples do not add up to the gradient; it is "
                    "used outside its own layer's forward, or in a layer that draws random numbers"
                )
        return None


def _split(
    inputs: Any, targets: Any, numbers: Tensor | None, size: int, step: int
) -> Iterator[tuple[slice, tuple[Any, Any, Tensor | None, int]]]:
    """Split the examples (or units) into parts of public size: their range, and what to compute."""
    for start in range(0, size, step):
        place = slice(start, min(start + step, size))
        if step >= size:
            yield place, (inputs, targets, numbers, size)
        elif numbers is None:
            yield place, (part_of(inputs, place), part_of(targets, place), None, 0)
        else:
            # Whole units, whatever order their examples come in.
            index = torch.nonzero((numbers >= start) & (numbers < place.stop)).flatten()
            chosen = part_of(inputs, index), part_of(targets, index)
            yield place, (*chosen, numbers[index] - start, place.stop - start)


def _join(
    contributions: dict[str, Contribution], size: int, parameters: Mapping[str, Tensor]
) -> Gradients:
    """The gradients over all parameters together. Contributions are freed as they are summed."""
    if not contributions:
        return Gradients(torch.zeros(size), None, lambda weights: {})
    squares = {name: use.squared_norms() for name, use in contributions.items()}
    rounding = {name: use.squared_rounding() for name, use in contributions.items()}
    total: Tensor | None = None
    if any(value is not None for value in rounding.values()):
        # Materialised gradients are summed with as many terms as a block has examples.
        plain = min(size, BLOCK) ** 2
        parts = [
            plain * squares[name] if value is None else value for name, value in rounding.items()
        ]
        total = torch.stack(parts).sum(0).sqrt_()

    def sums(weights: Tensor) -> dict[str, Tensor]:
        return {
            name: contributions.pop(name).weighted_sum(weights).reshape(parameters[name].shape)
            for name in list(contributions)
        }

    return Gradients(torch.stack(list(squares.values())).sum(0).sqrt_(), total, sums)


def refuse_reduced_precision() -> None:
    """Refuse modes in which products of float32 numbers are rounded to fewer bits than assumed.

    >>> refuse_reduced_precision()
    """
    modes: dict[str, Any] = {
        "torch.backends.mkldnn.matmul.fp32_precision": torch.backends.mkldnn.matmul,  # type: ignore[attr-defined]
        "torch.backends.mkldnn.conv.fp32_precision": torch.backends.mkldnn.conv,  # type: ignore[attr-defined]
    }
    if torch.cuda.is_available():
        modes["torch.backends.cuda.matmul.fp32_precision"] = torch.backends.cuda.matmul
        modes["torch.backends.cudnn.conv.fp32_precision"] = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    for name, backend in modes.items():
        if backend.fp32_precision not in ("none", "ieee"):
            raise InputError(
                f"{name} = {backend.fp32_precision}: must be ieee; the bound on rounding errors "
                "holds only for full single precision"
            )
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise InputError(
            "torch.autocast: must be off; the bound on rounding errors holds only for full "
            "single precision"
        )


def refuse_mixing(module: nn.Module, inputs: Any) -> None:
    """Refuse a model whose output for an example differs when the example is alone.

    This protects the user: such a model would train on something other than what was meant. The
    guarantee does not depend on it, since models that reach this test run on each example alone.
    """
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.no_grad():
        together, again = module(*arguments), module(*arguments)
        if not isinstance(together, Tensor) or not torch.equal(together, again):
            return
        try:
            alone = [module(*(a[n : n + 1] for a in arguments)) for n in range(len(together))]
        except Exception as error:
            raise InputError(
                f"model: cannot take one example alone ({_first_line(error)}); examples must not "
                "need each other"
            ) from error
    scale = float(together.float().abs().max())
    difference = float((torch.cat(alone) - together).float().abs().max())
    if not difference <= TOLERANCE_OF_HALF * scale:
        raise InputError(
            "model: its output for an example depends on the other examples of the batch; "
            "examples must not see each other"
        )


def synthetic_examples(module: nn.Module, inputs: Any, targets: Any) -> tuple[Any, Any]:
    """Synthetic examples with the shapes and types of those given, from torch's random state."""
    tokens = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    parts = [*(inputs if isinstance(inputs, tuple) else (inputs,))]
    parts += targets if isinstance(targets, tuple) else (targets,)
    # A batch size that differs from every other dimension.
    taken = {size for part in parts for size in part.shape[1:]}
    size = next(number for number in range(5, 6 + len(taken)) if number not in taken)

    def make(like: Tensor, categories: int, normal: bool) -> Tensor:
        shape = (size, *like.shape[1:])
        if like.is_floating_point():
            draw = torch.randn(shape) if normal else torch.rand(shape)
            return draw.to(like.dtype).to(like.device)
        return torch.randint(0, categories, shape).to(like.dtype).to(like.device)

    def make_each(values: Any, categories: int, normal: bool) -> Any:
        if isinstance(values, tuple):
            return tuple(make(value, categories, normal) for value in values)
        return make(values, categories, normal)

    # Targets may be classes, probabilities or numbers: values from 0 to 1 suit all of them.
    return make_each(inputs, min(tokens, default=2), True), make_each(targets, 2, False)


def copy_apart(module: nn.Module) -> nn.Module:
    """A copy that shares only its parameters with the module.

    What a forward pass writes into buffers and attributes of a copy reaches no other example.
    """
    memo: dict[int, Any] = {id(parameter): parameter for parameter in module.parameters()}
    for layer in module.modules():
        for value in (*layer._buffers.values(), *vars(layer).values()):
            if isinstance(value, Tensor) and id(value) not in memo:
                # deepcopy refuses tensors that are not leaves of the autograd graph.
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)


def _signature(values: Any) -> Any:
    """What the choice of a path depends on: types and shapes, without the number of examples."""
    if isinstance(values, tuple):
        return tuple(map(_signature, values))
    return values.shape[1:], values.dtype, values.device


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


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
    for held, name, value, trainable in parts:
        if held.get(name) is not value:
            return False
        if isinstance(value, nn.Parameter) and value.requires_grad is not trainable:
            return False
    return True


def _fits(chain: Chain, inputs: Any) -> bool:
    """Whether the chain can take these inputs as they are; other inputs take a slower path."""
    return (
        isinstance(inputs, Tensor) and inputs.dtype == torch.float32 and chain.fits(inputs.ndim - 1)
    )


def _from_zero(units: Tensor, size: int) -> Tensor:
    """The units of some examples as 0, 1, 2, ... without gaps."""
    fits = units.ndim == 1 and not units.is_floating_point() and units.dtype != torch.bool
    if not fits or len(units) != size:
        raise InputError(
            f"units: is {units.dtype} of shape {tuple(units.shape)}, must be one whole number for "
            "each example"
        )
    return torch.unique(units, return_inverse=True)[1]


def _highest(numbers: Tensor) -> int:
    return int(numbers.max()) + 1 if len(numbers) else 0


def batch_size(inputs: Any) -> int:
    """The number of examples in a tensor, or in a tuple of tensors."""
    first = inputs[0] if isinstance(inputs, tuple) else inputs
    return int(first.shape[0])


def part_of(values: Any, part: slice | Tensor) -> Any:
    """Some of the examples of a tensor, or of a tuple of tensors."""
    if isinstance(values, tuple):
        return tuple(value[part] for value in values)
    return values[part]
