"""Losses with one value per example, and their gradients.

Any function of (outputs, targets) that returns one loss per example can be used. Those defined here
also have a method ``gradient(outputs, targets)``, the gradient of each loss by its outputs, in
their shape and with any number of dimensions in front, which saves a pass through autograd. Any
other function is called with one example at a time (:func:`loss_gradients`), so that no loss can
mix the examples of a batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from pacdp.errors import InputError

# exp of this is 2e-35, negligible next to the 1 of the largest output.
SMALLEST_EXPONENT = -80.0
# From a model's output and the targets, one loss for each example.
Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class CrossEntropy:
    """−ln softmax(outputs)[target] for class targets; outputs may be log-probabilities.

    >>> CrossEntropy()(torch.zeros(2, 4), torch.tensor([0, 3])).tolist()
    [1.386..., 1.386...]
    """

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _require(targets.shape == outputs.shape[:-1], self, outputs, targets, "one class each")
        return F.cross_entropy(outputs, targets, reduction="none")

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _require(targets.shape == outputs.shape[:-1], self, outputs, targets, "one class each")
        # torch's own softmax is slow for few classes. Without the limit, results near the
        # underflow threshold would take many times longer, which could reveal them.
        result = (outputs - outputs.amax(-1, keepdim=True)).clamp_(min=SMALLEST_EXPONENT).exp_()
        result /= result.sum(-1, keepdim=True)
        return result.scatter_(-1, targets.unsqueeze(-1), -1.0, reduce="add")


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Cross-entropy of a single logit per example against a 0/1 target.

    >>> BinaryCrossEntropy()(torch.zeros(2, 1), torch.tensor([0, 1])).tolist()
    [0.693..., 0.693...]
    """

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _require(outputs.shape == (*targets.shape, 1), self, outputs, targets, "one logit each")
        logits = outputs.squeeze(-1)
        return F.binary_cross_entropy_with_logits(
            logits, targets.to(logits.dtype), reduction="none"
        )

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _require(outputs.shape == (*targets.shape, 1), self, outputs, targets, "one logit each")
        return torch.sigmoid(outputs).sub_(targets.unsqueeze(-1))


@dataclass(frozen=True)
class SquaredError:
    """½·‖outputs − targets‖² for regression.

    >>> SquaredError()(torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [1.0]])).tolist()
    [0.0, 2.0]
    """

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.gradient(outputs, targets).flatten(1).square().sum(1) / 2

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        _require(outputs.shape == targets.shape, self, outputs, targets, "the same shape")
        return outputs - targets


_CLOSED_FORMS = (CrossEntropy, BinaryCrossEntropy, SquaredError)


def loss_gradients(loss: Loss, outputs: Tensor, targets: Tensor, *, lead: int = 1) -> Tensor:
    """Compute ∂ loss_i / ∂ outputs_i; ``lead`` dimensions come before those of an example.

    >>> squares = lambda outputs, targets: (outputs - targets).square().sum(1)
    >>> loss_gradients(squares, torch.ones(2, 1), torch.zeros(2, 1))
    tensor([[2.],
            [2.]])
    """
    if type(loss) in _CLOSED_FORMS:
        gradients: Tensor = loss.gradient(outputs, targets)  # type: ignore[attr-defined]
        return gradients

    def example_loss(output: Tensor, target: Tensor) -> Tensor:
        return require_one_per_example(loss(output[None], target[None]), 1).sum()

    flat = (outputs.detach().flatten(0, lead - 1), targets.flatten(0, lead - 1))
    result: Tensor = vmap_or_loop(
        grad(example_loss), flat, lambda: torch.full_like(flat[0][0], torch.nan)
    )
    return result.reshape(outputs.shape)


# Functions that raise an error for some values. On a batch, one example would make them fail for
# all: those of linear algebra except the ones named here, and some that check their arguments.
_NEVER_FAIL = ("vector_norm", "cross", "vecdot", "diagonal", "matmul", "multi_dot", "vander")
_MAY_FAIL = frozenset(
    (
        *(name for name in dir(torch._C._linalg) if name.startswith("linalg_")),  # type: ignore[attr-defined]
        *("inverse", "pinverse", "cholesky", "cholesky_inverse", "cholesky_solve", "svd", "lu"),
        *("qr", "geqrf", "ormqr", "nuclear_norm", "multinomial", "bernoulli", "normal", "poisson"),
        *("bincount", "one_hot"),
    )
) - {f"linalg_{name}" for name in _NEVER_FAIL}


class _MayFailError(BaseException):
    """A function that may fail was called; not an ``Exception``, so that models do not catch it."""


class _RefuseFallible(TorchFunctionMode):
    """Refuses functions that may fail for some values, whether or not they would fail now."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _MAY_FAIL:
            raise _MayFailError(name)
        return func(*args, **(kwargs or {}))


def vmap_or_loop(
    function: Callable[..., Any],
    examples: tuple[Any, ...],
    null: Callable[[], Any],
    *,
    strict: bool = False,
) -> Any:
    """Apply the function to each example by itself: vectorised if torch.func can, else in a loop.

    Which of the two happens depends on the function, not on the values of the examples: torch.func
    refuses control flow that depends on them, and functions that may fail for some values are
    refused here. In the loop, an example for which the function raises an error gets ``null()``,
    so that errors reveal nothing about a record; only with ``strict`` are they raised.
    """
    try:
        with _RefuseFallible():
            return vmap(function, randomness="different")(*examples)
    except (RuntimeError, _MayFailError):
        leaves, structure = tree_flatten(examples)
        results = []
        for place in range(len(leaves[0])):
            try:
                example = tree_unflatten([leaf[place] for leaf in leaves], structure)
                results.append(function(*example))
            except InputError:
                raise
            except Exception:
                if strict:
                    raise
                results.append(null())
        return tree_map(lambda *values: torch.stack(values), *results)


def require_one_per_example(losses: Any, size: int) -> Tensor:
    """Return the losses if there is one for each example, which a mean over a batch is not."""
    if not isinstance(losses, Tensor) or losses.shape != (size,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(
            f"loss: gave {shape} for {size} examples, must give one value for each "
            "(reduction='none')"
        )
    return losses


def _require(fits: bool, loss: object, outputs: Tensor, targets: Tensor, allowed: str) -> None:
    """Require that shapes match: broadcasting would pair every example with every other."""
    if not fits:
        raise InputError(
            f"{type(loss).__name__}: outputs {tuple(outputs.shape)} and targets "
            f"{tuple(targets.shape)} must have {allowed}"
        )
