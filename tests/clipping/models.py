"""Models, and a reference implementation: one example at a time, by ordinary autograd."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from pacdp.clipping.numerics import shrink_bound
from pacdp.models import build_model

cnn = partial(build_model, "cnn", shape=(1, 28, 28), outputs=10)


def reference(module, loss, inputs, targets, bound):
    """Σ g_i·min(1, C′/‖g_i‖), and the norms, in double precision; C′ leaves room for rounding."""
    bound = shrink_bound(bound, 1)
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    total = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in parameters.items()}
    norms = []
    size = len(inputs[0] if isinstance(inputs, tuple) else inputs)
    for i in range(size):
        one = (
            tuple(x[i : i + 1] for x in inputs) if isinstance(inputs, tuple) else inputs[i : i + 1]
        )
        outputs = module(*one) if isinstance(one, tuple) else module(one)
        value = loss(outputs, targets[i : i + 1]).sum()
        found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True)
        found = [
            torch.zeros_like(p) if g is None else g
            for g, p in zip(found, parameters.values(), strict=True)
        ]
        norm = torch.sqrt(sum(g.double().square().sum() for g in found))
        norms.append(norm)
        factor = min(1.0, bound / float(norm)) if norm > 0 else 1.0
        for name, gradient in zip(parameters, found, strict=True):
            total[name] += factor * gradient.double()
    return total, torch.stack(norms)


def assert_same(found, expected, tolerance=1e-4):
    """Compare relative to the whole vector: small parameters may differ by rounding."""
    assert list(found) == list(expected)
    scale = torch.sqrt(sum(value.square().sum() for value in expected.values()))
    for name, value in found.items():
        error = (value.double() - expected[name]).norm()
        assert error <= tolerance * scale, f"{name}: {error / scale}"


class CNN(nn.Module):
    """The paper's small CNN, 21,840 parameters, written as a user would."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 10, 5)
        self.second = nn.Conv2d(10, 20, 5)
        self.hidden = nn.Linear(320, 50)
        self.head = nn.Linear(50, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return F.log_softmax(self.head(F.relu(self.hidden(x.flatten(1)))), 1)


class Sequence(nn.Module):
    """Embedding, a recurrent layer, a linear head."""

    def __init__(self, kind=nn.GRU, **options):
        super().__init__()
        self.embedding = nn.Embedding(20, 6, padding_idx=0)
        self.recurrent = kind(6, 8, batch_first=True, **options)
        self.head = nn.Linear(8 * (2 if options.get("bidirectional") else 1), 4)

    def forward(self, tokens):
        outputs, _ = self.recurrent(self.embedding(tokens))
        return self.head(outputs[:, -1])
