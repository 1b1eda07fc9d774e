"""Chooses how a model's per-example gradients are computed, and tests the choice.

Everything is tried on synthetic examples, so nothing about the choice depends on a record.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from pacdp.clipping.examples import Batch, as_tuple, synthetic_examples, take
from pacdp.clipping.losses import Loss, loss_gradients
from pacdp.clipping.separation import ModelState, find_mixing
from pacdp.clipping.sequential import SequentialModel
from pacdp.clipping.strategies import (
    Bookkeeping,
    SeparateExamples,
    SequentialStrategy,
    Strategy,
    combine,
    copy_sharing_parameters,
)
from pacdp.errors import InputError, first_line

# How far the sum of per-example gradients may be from the gradient, relative to their norms.
TOLERANCE, TOLERANCE_OF_HALF = 1e-3, 5e-2


def choose_strategy(
    module: nn.Module, loss: Loss, inputs: Any, targets: Any, *, sequential: SequentialModel | None
) -> Strategy:
    """Choose the fastest strategy that is correct for examples of these shapes and types.

    ``sequential`` is the module as a plain sequence of known layers, if it may be used as one. A
    model that cannot be trained privately is refused.
    """
    if (
        sequential is not None
        and isinstance(inputs, Tensor)
        and inputs.dtype == torch.float32
        and sequential.accepts(inputs.ndim - 1)
    ):
        known = "all examples at once: a plain sequence of known layers"
        return SequentialStrategy(module, loss, known, model=sequential)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        inputs, targets = synthetic_examples(module, inputs, targets)
        try:
            tested = copy.deepcopy(module)
        except Exception as error:
            tested = module
            reason: str | None = f"it cannot be copied to be tested ({first_line(error)})"
        else:
            _perturb(tested)
            reason = find_mixing(tested, as_tuple(inputs))
            reason = reason or _find_wrong_rule(Bookkeeping(tested, loss), inputs, targets)
        if reason is None:
            shown = "all examples at once: shown to treat examples separately"
            return Bookkeeping(module, loss, shown)
        _test_separate_examples(SeparateExamples(tested, loss), inputs, targets)
        return SeparateExamples(module, loss, f"each example by itself: {reason}")


def _perturb(module: nn.Module) -> None:
    """Change the parameters a little: layers initialised to zero would hide those before them."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))


def _find_wrong_rule(strategy: Bookkeeping, inputs: Any, targets: Any) -> str | None:
    """Compare book-keeping with ordinary autograd, and name a parameter for which they differ.

    This catches what no rule covers: a layer that draws its own random numbers, or a first
    dimension that merely happened to have the size of the batch.
    """
    parameters = strategy.parameters
    try:
        uses, outputs = strategy.forward(inputs)
    except InputError as error:
        return str(error)
    if not isinstance(outputs, Tensor):
        return f"it returns {type(outputs).__name__}, not one tensor"
    back = loss_gradients(strategy.loss, outputs.detach(), targets)
    if outputs.grad_fn is None:
        return None
    weights = 0.5 + torch.rand(len(outputs), device=outputs.device)
    expected = torch.autograd.grad(
        outputs,
        list(parameters.values()),
        (back * weights.reshape(-1, *[1] * (back.ndim - 1))).to(outputs.dtype),
        retain_graph=True,
        allow_unused=True,
    )
    try:
        contributions = strategy.contributions(uses, outputs, back)
    except InputError as error:
        return str(error)
    batch = Batch(inputs, targets, len(outputs))
    scale = float(combine(contributions, batch, parameters).norms.sum())
    for (name, parameter), gradient in zip(parameters.items(), expected, strict=True):
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


def _test_separate_examples(strategy: SeparateExamples, inputs: Any, targets: Any) -> None:
    """Refuse a model that cannot run on one example alone, or that visibly mixes examples.

    A model that writes to variables outside of itself is refused, too: they would carry information
    from one example to the next. What it writes into itself does not, since each example runs on a
    copy.
    """
    state = ModelState(strategy.module)
    written = False
    try:
        _refuse_mixing(copy_sharing_parameters(strategy.module), as_tuple(inputs))
        # Other examples the second time: a variable may already have had the value written.
        for part in (slice(None), slice(1)):
            strategy.contributions(take(inputs, part), take(targets, part), strict=True)
            written |= state.changed()
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"model: has no gradient for one example alone ({first_line(error)}); examples "
            "must not need each other"
        ) from error
    if written:
        raise InputError(
            "model: its forward pass writes to a variable outside of it, which could carry "
            "information from one example to another; must keep its state in attributes"
        )


def _refuse_mixing(module: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Refuse a model whose output for an example differs when the example is alone.

    This protects the user: such a model would train on something other than what was meant. The
    guarantee does not depend on it, since models that reach this test run on each example alone.
    """
    with torch.no_grad():
        together, again = module(*arguments), module(*arguments)
        if not isinstance(together, Tensor) or not torch.equal(together, again):
            return
        try:
            alone = [module(*take(arguments, slice(n, n + 1))) for n in range(len(together))]
        except Exception as error:
            raise InputError(
                f"model: cannot take one example alone ({first_line(error)}); examples must not "
                "need each other"
            ) from error
    scale = float(together.float().abs().max())
    difference = float((torch.cat(alone) - together).float().abs().max())
    if not difference <= TOLERANCE_OF_HALF * scale:
        raise InputError(
            "model: its output for an example depends on the other examples of the batch; "
            "examples must not see each other"
        )
