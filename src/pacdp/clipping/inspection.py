"""A numerical check that a model can be trained privately, which a user can run on any module.

Rules about kinds of layers cannot cover everything: a custom module may mix examples, change
tensors in place, or tie weights in unforeseen ways. This check compares what the engine computes
for each example of a batch with the gradient of that example alone, by ordinary autograd.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from pacdp.clipping.examples import as_tuple, batch_size, take
from pacdp.clipping.gradient import ClippedGradient
from pacdp.clipping.losses import Loss
from pacdp.errors import InputError, first_line

TOLERANCE = 1e-3
# Layers that draw random numbers in training.
_RANDOM_LAYERS = (_DropoutNd, nn.RNNBase, nn.MultiheadAttention)


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
        raise InputError(f"inputs: has {size} examples, must have at least 2 to compare them")
    # A copy, since layers may keep statistics, in training mode, where layers may mix examples.
    module = copy.deepcopy(module).train()
    for layer in module.modules():
        if isinstance(layer, _RANDOM_LAYERS):
            layer.eval()
    engine = ClippedGradient(module, loss, adjacency="zero-out")
    gradients = [_gradient_alone(module, loss, inputs, targets, n) for n in range(size)]
    norms = [_norm(gradient) for gradient in gradients]
    for example, (norm, claimed) in enumerate(
        zip(norms, engine.norms(inputs, targets).tolist(), strict=True)
    ):
        if abs(claimed - norm) > TOLERANCE * max(norm, 1e-6):
            raise InputError(
                f"model: example {example} has a gradient of norm {norm:.6g} alone, and of "
                f"{claimed:.6g} in the batch; examples must not see each other"
            )
    # A bound far above every norm: the sum is then the plain sum of gradients.
    summed = engine(inputs, targets, clipping_bound=1e12).values
    wrong = []
    for name, value in summed.items():
        expected = torch.stack([gradient[name].float() for gradient in gradients]).sum(0)
        if float((value - expected).norm()) > TOLERANCE * max(*norms, 1e-6):
            wrong.append(name)
    if wrong:
        raise InputError(
            f"parameters {', '.join(wrong)}: the sum over a batch is not the sum over its "
            "examples; look for operations in place, or across examples"
        )


def _gradient_alone(
    module: nn.Module, loss: Loss, inputs: Any, targets: Any, example: int
) -> dict[str, Tensor]:
    """Compute one example's gradient by ordinary autograd, with no other example in the batch."""
    alone = slice(example, example + 1)
    try:
        outputs = module(*as_tuple(take(inputs, alone)))
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"model: cannot take example {example} alone ({first_line(error)}); examples must not "
            "need each other"
        ) from error
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    total = loss(outputs, take(targets, alone)).sum()
    gradients = torch.autograd.grad(
        total, list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(parameters, gradients, strict=True))


def _norm(gradient: dict[str, Tensor]) -> float:
    parts = [torch.linalg.vector_norm(value.float()) for value in gradient.values()]
    return float(torch.linalg.vector_norm(torch.stack(parts)))
