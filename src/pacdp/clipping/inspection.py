"""A numerical check that a model can be trained privately, which a user can run on any module.

Rules about kinds of layers cannot see everything: a custom module may mix examples, change tensors
in place, or tie weights in ways nobody foresaw. This check does not look at the model, only at what
it does: each example is sent through alone, by ordinary autograd, and compared with what the engine
says of it in the batch.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from pacdp.clipping.gradient import ClippedGradient, batch_size, part_of
from pacdp.clipping.losses import Loss
from pacdp.errors import InputError

TOLERANCE = 1e-3
# Layers that draw random numbers in training.
_DRAWS = (_DropoutNd, nn.RNNBase, nn.MultiheadAttention)


def check_model(module: nn.Module, loss: Loss, inputs: Any, targets: Any) -> None:
    """Refuse a model whose clipped sums would not be what they claim, naming parameters.

    Run it once on a few examples, public or made up. Dropout is switched off meanwhile, since it
    draws anew for every pass.

    >>> from pacdp.clipping.losses import CrossEntropy
    >>> inputs, targets = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    >>> check_model(nn.Linear(3, 2), CrossEntropy(), inputs, targets)
    """
    size = batch_size(inputs)
    if size < 2:
        raise InputError(f"inputs: has {size} examples, must have at least 2 to tell them apart")
    # A copy, since layers may keep statistics, in training mode, where layers may mix examples.
    module = copy.deepcopy(module).train()
    for layer in module.modules():
        if isinstance(layer, _DRAWS):
            layer.eval()
    engine = ClippedGradient(module, loss, adjacency="zero-out")
    alone = [_alone(module, loss, inputs, targets, example) for example in range(size)]
    _compare_norms(engine, alone, inputs, targets)
    _compare_sums(engine, alone, inputs, targets)


def _alone(
    module: nn.Module, loss: Loss, inputs: Any, targets: Any, example: int
) -> dict[str, Tensor]:
    """One example's gradient, by ordinary autograd, with nobody else in the batch."""
    one = slice(example, example + 1)
    chosen = part_of(inputs, one)
    try:
        outputs = module(*chosen) if isinstance(chosen, tuple) else module(chosen)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"model: cannot take example {example} alone ({reason}); examples must not need "
            "each other"
        ) from error
    names, parameters = zip(
        *((n, p) for n, p in module.named_parameters() if p.requires_grad), strict=True
    )
    total = loss(outputs, part_of(targets, one)).sum()
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for name, parameter, gradient in zip(names, parameters, found, strict=True)
    }


def _norm(gradient: dict[str, Tensor]) -> float:
    parts = [torch.linalg.vector_norm(value.float()) for value in gradient.values()]
    return float(torch.linalg.vector_norm(torch.stack(parts)))


def _compare_norms(
    engine: ClippedGradient, alone: list[dict[str, Tensor]], inputs: Any, targets: Any
) -> None:
    claimed = engine.norms(inputs, targets)
    for example, gradient in enumerate(alone):
        true = _norm(gradient)
        if abs(float(claimed[example]) - true) > TOLERANCE * max(true, 1e-6):
            raise InputError(
                f"model: example {example} has a gradient of norm {true:.6g} alone, and of "
                f"{float(claimed[example]):.6g} in the batch; examples must not see each other"
            )


def _compare_sums(
    engine: ClippedGradient, alone: list[dict[str, Tensor]], inputs: Any, targets: Any
) -> None:
    # A bound far above every norm: the sum is then the plain sum of gradients.
    summed = engine(inputs, targets, clipping_bound=1e12).values
    largest = max(_norm(gradient) for gradient in alone)
    wrong = []
    for name, value in summed.items():
        expected = torch.stack([gradient[name].float() for gradient in alone]).sum(0)
        if float((value - expected).norm()) > TOLERANCE * max(largest, 1e-6):
            wrong.append(name)
    if wrong:
        raise InputError(
            f"parameters {', '.join(wrong)}: the sum over a batch is not the sum over its "
            "examples; look for operations in place, or across examples"
        )
