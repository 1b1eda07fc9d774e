"""Clipped sums of per-example gradients, at the price of an ordinary training step.

One forward pass notes what went into each layer; one backward pass finds the gradient of what came
out of it, and no weight gradients. From the two follow every example's gradient norm, and the sum
over examples, each scaled to at most C (book-keeping; Bu et al. 2023). Nothing is trusted to the
order in which a model uses its layers: a layer called twice and weights tied between layers are
added up before their norm is taken, and a parameter that is used where no layer can see it is
refused by name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pacdp.checks import count, positive_number
from pacdp.clipping.bounded import ClippedSum, clip_factors
from pacdp.clipping.chain import Chain, as_chain, one_per_example
from pacdp.clipping.contributions import Contribution, Outer, Rows, Together
from pacdp.clipping.layers import Contributions, by_vmap, output_tensors, rule_for
from pacdp.clipping.recurrent import RECURRENT, Record, unrolled
from pacdp.clipping.stacked import chain_sum
from pacdp.clipping.validation import require_private
from pacdp.errors import InputError
from pacdp.privacy import Adjacency

# From a model's output and the targets, one loss for each example.
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class _Use:
    """One use of a layer: where its output gradients come from, and what follows from them."""

    layer: str
    edges: list[GradientEdge]
    contributions: Callable[[list[Tensor | None]], Contributions]
    watched: list[tuple[Tensor, int]]
    """Tensors kept for later, and their versions: an in-place change would falsify them."""


class ClippedGradient:
    """Clipped sums for one module and one loss, as values that carry their sensitivity.

    Formal guarantee: whatever the examples, replacing one by a null example moves the sum by at
    most C in L2 over all parameters together, and swapping one for another by at most 2C, up to
    rounding of the sum itself. Examples whose gradient is not finite contribute zero.

    ``loss`` must return one value per example, such as ``F.cross_entropy(..., reduction="none")``.
    The sum is a sum, not a mean: divide by a public number when it is released. ``microbatch``
    bounds memory by taking so many examples at a time.

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
    ) -> None:
        require_private(module)
        self.module = module
        self.loss = loss
        self.adjacency = Adjacency.parse(adjacency)
        self.microbatch = None if microbatch is None else int(count("microbatch", microbatch))
        self._trainable = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._chain = as_chain(module)

    def __call__(self, inputs: Any, targets: Any, *, clipping_bound: float) -> ClippedSum:
        """Σ_i g_i·min(1, C/‖g_i‖) over the examples of a batch, which may be empty."""
        bound = positive_number("clipping_bound", clipping_bound)
        size = batch_size(inputs)
        step = self.microbatch or max(size, 1)
        total: dict[str, Tensor] = {}
        dropped = 0
        for start in range(0, size, step):
            whole = step >= size
            part = slice(start, start + step)
            found, bad = self._sum(
                inputs if whole else part_of(inputs, part),
                targets if whole else part_of(targets, part),
                bound,
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
            not_finite=dropped,
        )

    def norms(self, inputs: Any, targets: Any) -> Tensor:
        """Each example's gradient norm. Private: nothing derived from it may leave unpaid."""
        return _squared_norms(self._contributions(inputs, targets)).sqrt()

    def _sum(self, inputs: Any, targets: Any, bound: float) -> tuple[dict[str, Tensor], int]:
        """The clipped sum of a micro-batch, and how many of its gradients were not finite."""
        if self._chain is not None and _fits(self._chain, inputs):
            with torch.no_grad():
                values, dropped = chain_sum(
                    self._chain,
                    {name: parameter.unsqueeze(0) for name, parameter in self._trainable.items()},
                    *(inputs.unsqueeze(0), targets.unsqueeze(0), self.loss),
                    bounds=bound,
                )
            return {name: value[0] for name, value in values.items()}, dropped.get(0, 0)
        contributions = self._contributions(inputs, targets)
        if not contributions:
            return self._zeros(), 0
        squares = _squared_norms(contributions)
        finite = torch.isfinite(squares)
        if not finite.all():
            # Zero times NaN is NaN: the sum is taken again without them.
            again, more = self._sum(part_of(inputs, finite), part_of(targets, finite), bound)
            return again, more + int((~finite).sum())
        factors = clip_factors(squares, bound)
        total = {}
        for name, parameter in self._trainable.items():
            # Taken out as it is summed, so that what it kept can be freed.
            contribution = contributions.pop(name, None)
            if contribution is None:
                total[name] = torch.zeros_like(parameter, dtype=torch.float32)
            else:
                total[name] = contribution.weighted_sum(factors).reshape(parameter.shape)
        return total, 0

    def _zeros(self) -> dict[str, Tensor]:
        return {
            name: torch.zeros_like(p, dtype=torch.float32) for name, p in self._trainable.items()
        }

    def _contributions(self, inputs: Any, targets: Any) -> dict[str, Contribution]:
        """What each trainable parameter gets from each example."""
        size = batch_size(inputs)
        if not size:
            return {}
        with _recording(self.module, size) as uses, torch.enable_grad():
            outputs = self.module(*inputs) if isinstance(inputs, tuple) else self.module(inputs)
            losses = self.loss(outputs, targets)
        one_per_example(losses, size)
        names = {id(parameter): name for name, parameter in self._trainable.items()}
        collected = _collect(self.module, uses, losses, names)
        return {
            name: found[0] if len(found) == 1 else Together(found)
            for name, found in collected.items()
        }


def _collect(
    module: nn.Module, uses: Sequence[_Use], losses: Tensor, names: dict[int, str]
) -> dict[str, list[Contribution]]:
    """Run the backward pass and sort what each use contributes by parameter."""
    by_name = dict(module.named_parameters())
    seen = {use.layer for use in uses}
    unseen = [name for name in names.values() if not any(_belongs(name, layer) for layer in seen)]
    edges = [edge for use in uses for edge in use.edges]
    wanted: list[Any] = [*edges, *(by_name[name] for name in unseen)]
    if not wanted or losses.grad_fn is None:
        return {}
    gradients: list[Tensor | None] = []
    gradients += torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
    for name, gradient in zip(unseen, gradients[len(edges) :], strict=True):
        if gradient is not None:
            raise InputError(
                f"parameter {name}: is used outside its own layer's forward, where examples "
                "cannot be told apart; call the layer, or freeze the parameter"
            )
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
        if any(tensor._version != version for tensor, version in use.watched):
            raise InputError(
                f"layer {use.layer or type(module).__name__}: its input is changed in place "
                "later in the forward pass; use the out-of-place operation"
            )
        layer = module.get_submodule(use.layer)
        held = dict(layer.named_parameters(remove_duplicate=False))
        for name, contribution in use.contributions(own).items():
            # A layer without a bias has none to contribute to, and a frozen one wants nothing.
            if name in held and id(held[name]) in names:
                collected.setdefault(names[id(held[name])], []).append(contribution)
    return collected


def _belongs(parameter: str, layer: str) -> bool:
    return not layer or parameter.startswith(f"{layer}.")


def _squared_norms(contributions: dict[str, Contribution]) -> Tensor:
    squares = [contribution.squared_norms() for contribution in contributions.values()]
    return torch.stack(squares).sum(0)


def _fits(chain: Chain, inputs: Any) -> bool:
    """Whether the chain can take these inputs as they are; a slower way takes all others."""
    return (
        isinstance(inputs, Tensor) and inputs.dtype == torch.float32 and chain.fits(inputs.ndim - 1)
    )


def batch_size(inputs: Any) -> int:
    """The number of examples in a tensor, or in a tuple of tensors."""
    first = inputs[0] if isinstance(inputs, tuple) else inputs
    return len(first)


def part_of(values: Any, part: slice | Tensor) -> Any:
    """Some of the examples of a tensor, or of a tuple of tensors."""
    if isinstance(values, tuple):
        return tuple(value[part] for value in values)
    return values[part]


@contextmanager
def _recording(module: nn.Module, size: int) -> Iterator[list[_Use]]:
    """Note every use of a layer with trainable parameters during a forward pass."""
    uses: list[_Use] = []
    undo: list[Callable[[], None]] = []
    try:
        for name, layer in _layers(module):
            if isinstance(layer, RECURRENT):
                original = layer.__dict__.get("forward")
                layer.forward = unrolled(layer, _linear_recorder(uses, name))  # type: ignore[assignment]
                undo.append(_restorer(layer, original))
            else:
                handle = layer.register_forward_hook(_hook(uses, name, size))
                undo.append(handle.remove)
        yield uses
    finally:
        for action in undo:
            action()


def _layers(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules that own trainable parameters, or have a rule for them."""
    own = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
    if own:
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from _layers(child, f"{name}.{child_name}" if name else child_name)


def _restorer(layer: nn.Module, original: Any) -> Callable[[], None]:
    def restore() -> None:
        if original is None:
            del layer.forward
        else:
            layer.forward = original

    return restore


def _hook(uses: list[_Use], name: str, size: int) -> Callable[..., None]:
    def hook(layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        rule = rule_for(layer)
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        outputs = output_tensors(output)
        for tensor in [*tensors, *outputs]:
            if tensor.ndim == 0 or len(tensor) != size:
                raise InputError(
                    f"layer {name or type(layer).__name__}: sees a tensor of shape "
                    f"{tuple(tensor.shape)}, whose first dimension must be the {size} examples"
                )
        edges = [get_gradient_edge(tensor) for tensor in outputs if tensor.requires_grad]
        if not edges:
            return

        def contributions(gradients: list[Tensor | None]) -> Contributions:
            if rule is None:
                return by_vmap(layer, arguments, tuple(gradients))
            assert gradients[0] is not None
            seen = tensors[0].detach()
            return rule(layer, _single(seen), _single(gradients[0]))

        watched = [(tensor, tensor._version) for tensor in tensors]
        uses.append(_Use(name, edges, contributions, watched))

    return hook


def _linear_recorder(uses: list[_Use], layer: str) -> Record:
    """Records the linear maps of a recurrent layer: time steps are positions."""

    def record(weight: str, bias: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        def contributions(gradients: list[Tensor | None]) -> Contributions:
            zeros = torch.zeros_like
            made = [
                zeros(output) if gradient is None else gradient
                for gradient, output in zip(gradients, outputs, strict=True)
            ]
            if len(inputs) > 1:
                seen, back = torch.stack(inputs, 1), torch.stack(made, 1)
            else:
                seen, back = inputs[0], made[0]
            seen, back = _single(seen.detach()), _single(back)
            return {weight: Outer(seen, back), bias: Rows(back.sum(1))}

        edges = [get_gradient_edge(output) for output in outputs if output.requires_grad]
        if edges:
            watched = [(tensor, tensor._version) for tensor in inputs]
            uses.append(_Use(layer, edges, contributions, watched))

    return record


def _single(tensor: Tensor) -> Tensor:
    """Sums are taken in single precision, whatever the model computes in."""
    return tensor.float() if tensor.is_floating_point() else tensor
