"""Models that mix examples are found, and models accepted as separate are separate."""

import contextlib
import copy
import itertools
import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from pacdp.clipping.separation import find_mixing
from pacdp.models import build_model
from tests.clipping.models import CNN, Sequence

B, WIDTH = 6, 6  # Square on purpose: examples could be taken for features.


class Model(nn.Module):
    """A function between two layers."""

    def __init__(self, function, width=WIDTH, out=None):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.function = function
        self.last = nn.Linear(out or width, 3)

    def forward(self, *inputs):
        return self.last(self.function(self.first(inputs[0]), *inputs[1:]))


def rows(*shape):
    return torch.randn(B, *(shape or (WIDTH,)), generator=torch.Generator().manual_seed(0))


def influences(module, inputs):
    """Whether changing the first example changes another's outputs, or breaks the model."""

    def outputs(values):
        torch.manual_seed(1)
        result = copy.deepcopy(module)(*values)
        result = result[0] if isinstance(result, tuple) else result
        return result.detach()

    changed = []
    for value in inputs:
        other = value.clone()
        other[0] = other[0] * -3 + 7 if value.is_floating_point() else 4 - other[0]
        changed.append(other)
    before, after = outputs(inputs), outputs(changed)
    return before.shape != after.shape or not torch.allclose(
        before[1:], after[1:], rtol=0, atol=0, equal_nan=True
    )


MIXING = {
    "centred": lambda x: x - x.mean(0),
    "centred, keepdim": lambda x: x - x.mean(dim=0, keepdim=True),
    "negative dimension": lambda x: x - x.mean(-2),
    "axis": lambda x: x - x.mean(axis=0),
    "torch.mean by name": lambda x: x - torch.mean(input=x, dim=0),
    "all": lambda x: x / (x.max() + 10),
    "sum": lambda x: x + x.sum(),
    "empty dimensions": lambda x: x - x.mean(()),
    "norm": lambda x: x / x.norm(),
    "linalg": lambda x: x / torch.linalg.vector_norm(x),
    "std": lambda x: x / x.std(),
    "var(bool)": lambda x: x / x.var(False),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "x @ x.T": lambda x: x @ x.T,
    "x.T @ x": lambda x: x.T @ x,
    "x.mT": lambda x: x.mT @ x,
    "constant @ x": lambda x: torch.ones(B, B) @ x,
    "einsum": lambda x: torch.einsum("bi,ci->bc", x, x),
    "einsum, summed": lambda x: x + torch.einsum("bi->i", x),
    "transposed": lambda x: x + x.t(),
    "broadcast": lambda x: x + x[:, 0],
    "reshape": lambda x: x.reshape(-1, 2 * WIDTH).repeat_interleave(2, 0)[:, :WIDTH],
    "view": lambda x: x.view(WIDTH, -1).t().reshape(B, -1),
    "view, fixed": lambda x: x.view(2, -1)[:, :WIDTH].repeat(3, 1),
    "flatten(0)": lambda x: x.flatten(0).roll(1).view(B, -1),
    "roll": lambda x: x.roll(1, 0),
    "roll, flat": lambda x: x.roll(1),
    "flip": lambda x: x.flip(0),
    "flip, tuple": lambda x: torch.flip(x, (1, 0)),
    "cat": lambda x: torch.cat([x, x])[1 : B + 1],
    "sort": lambda x: x.sort(0)[0],
    "sort by name": lambda x: torch.sort(x, dim=-2).values,
    "topk": lambda x: x.topk(B, 0).values,
    "cumsum": lambda x: x.cumsum(0),
    "softmax": lambda x: x.softmax(0),
    "F.softmax": lambda x: F.softmax(x, dim=0),
    "normalize": lambda x: F.normalize(x, dim=0),
    "logsumexp": lambda x: x - x.logsumexp((0, 1)),
    "permuted": lambda x: x[torch.randperm(len(x))],
    "index": lambda x: x + x[0],
    "slice": lambda x: x + x[:1],
    "index list": lambda x: x[[1, 0, 2, 3, 4, 5]],
    "mask": lambda x: x + x[x[:, 0] > -99].sum(),
    "index_select": lambda x: x.index_select(0, torch.arange(B - 1, -1, -1)),
    "gather": lambda x: x.gather(0, torch.zeros(B, WIDTH, dtype=torch.long)),
    "chunk": lambda x: torch.cat(x.chunk(2)[::-1]),
    "unbind": lambda x: torch.stack(x.unbind()[::-1]),
    "iteration": lambda x: torch.stack([row + x[0] for row in x]),
    "range": lambda x: torch.stack([x[i - 1] for i in range(x.shape[0])]),
    "range, size": lambda x: x + sum(x.narrow(0, i, 1) for i in range(x.size(0))),
    "cdist": lambda x: torch.cdist(x, x),
    "cov": lambda x: x @ torch.cov(x.T),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "attention, folded": lambda x: F.scaled_dot_product_attention(
        x.unsqueeze(0), x.unsqueeze(0), x.unsqueeze(0)
    ).squeeze(0),
    "layer_norm": lambda x: F.layer_norm(x, (B, WIDTH)),
    "pool over examples": lambda x: F.avg_pool1d(x.t(), 3, 1, 1).t(),
    "pool, examples as length": lambda x: F.max_pool1d(x.t().unsqueeze(0), 3, 1, 1)[0].t(),
    "conv over examples": lambda x: (
        F.conv1d(x.t().unsqueeze(1), torch.ones(1, 1, 3), padding=1).squeeze(1).t()
    ),
    "conv, examples as channels": lambda x: F.conv1d(x.unsqueeze(0), torch.ones(B, B, 1))[0],
    "linear over examples": lambda x: F.linear(x.t(), torch.ones(B, B)).t(),
    "pad": lambda x: F.pad(x, (0, 0, 1, 0))[:-1],
    "interpolated": lambda x: F.interpolate(x[None], scale_factor=1 / 2).repeat(1, 1, 2)[0].t(),
    "unfold": lambda x: x.unfold(0, 2, 1).sum(-1).repeat(2, 1)[:B],
    "as_strided": lambda x: x.as_strided((B, WIDTH), (1, WIDTH)),
    "in place": lambda x: x.clone().sub_(x.mean(0)),
    "out": lambda x: _out(x),
    "written": lambda x: torch.zeros(WIDTH).copy_(x.detach()[0]) + x,
    "setitem": lambda x: _set(x),
    "accumulated": lambda x: _accumulate(x),
    "batch size branch": lambda x: x - x.mean(0) if x.size(0) > 3 else x,
    "batch size modulo": lambda x: x.flip(0) if x.shape[0] % 2 == 0 else x,
    "len branch": lambda x: x - x.mean(0) if len(x) > 3 else x,
    "value branch": lambda x: x if x[0].abs().max() > 2 else -x,
    "item": lambda x: x * x[0, 0].item(),
    "list": lambda x: x + torch.tensor(x.detach()[0].tolist()),
    "numpy": lambda x: x + torch.from_numpy(x.detach().numpy()[0]),
    "vmap": lambda x: torch.func.vmap(lambda column: column - column.mean(), 1, 1)(x),
    "aten": lambda x: x - torch.ops.aten.mean.dim(x, [0]),
    "not Function disabled": lambda x: _without_torch_function(x),
    "is a Tensor": lambda x: x - x.mean(0) if isinstance(x, torch.Tensor) else x,
    "exceptions caught": lambda x: _catch(x),
    "storage": lambda x: x + torch.as_strided(x, (1, WIDTH), (WIDTH, 1)),
    "data": lambda x: x + x.data[0],
    "expand": lambda x: x + x[:, :1].t().expand(B, WIDTH),
    "stack of rows": lambda x: torch.stack([x, x]).view(B, -1)[:, :WIDTH],
    "permute": lambda x: x.permute(1, 0) + x,
    "cosine": lambda x: x + F.cosine_similarity(x, x.roll(1, 1), dim=0),
    "max with indices": lambda x: x + x.max(dim=0).values,
    "aminmax": lambda x: x - x.aminmax().min,
    "repeat": lambda x: x.repeat(2, 1)[1 : B + 1],
    "bilinear": lambda x: F.bilinear(x, x.flip(0), torch.ones(WIDTH, WIDTH, WIDTH)),
    "tril": lambda x: torch.tril(torch.ones(B, B)) @ x,
    "searchsorted": lambda x: x + torch.searchsorted(x[0].sort()[0].detach(), x.detach()),
    "histogram": lambda x: x * torch.histc(x.detach(), 4).std(),
}


def _out(x):
    first = torch.zeros(WIDTH)
    torch.mul(x.detach()[0], 2, out=first)
    return x + first


def _set(x):
    x = x.clone()
    x[1:] = x[:-1].clone()
    return x


def _accumulate(x):
    total = torch.zeros(WIDTH)
    for part in x.split(2):
        total += part.sum(0)
    return x + total


def _without_torch_function(x):
    with torch._C.DisableTorchFunction():
        mean = x.mean(0)
    return x - mean


def _catch(x):
    try:
        return x - x.mean(0)
    except Exception:
        return x


@pytest.mark.parametrize("function", MIXING.values(), ids=MIXING)
def test_mixing_functions(function):
    torch.manual_seed(0)
    module = Model(function)
    assert find_mixing(module, (rows(),)) is not None
    assert influences(module, (rows(),))


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.mean


class Attribute(nn.Module):
    """The second call sees the first one's examples."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        self.seen.append(x)
        return self.linear(x)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        self.calls += 1
        return self.linear(x - x.mean(0) if self.calls > 3 else x)


CALLS = []


class Global(Counter):
    def forward(self, x):
        CALLS.append(1)
        return self.linear(x - x.mean(0) if len(CALLS) > 9 else x)


class ClassAttribute(Counter):
    total = 0

    def forward(self, x):
        type(self).total += 1
        return self.linear(x)


class Reversed(torch.autograd.Function):
    """Separate forwards, mixing backwards."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradients):
        return gradients.flip(0)


class Called(nn.Linear):
    def __call__(self, x):
        return super().__call__(x - x.mean(0))


class Wrong(torch.Tensor):
    """A constant with functions of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            return result - result.mean(0) if isinstance(result, torch.Tensor) else result


class Remembering(nn.Linear):
    """Keeps state where the analysis does not look."""

    def __init__(self):
        super().__init__(WIDTH, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        self.inner.weight.seen = x
        return self.inner(x)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.linear(x) * self.scale


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return F.linear(self.linear(x), self.linear.weight)


class Around(Tied):
    def forward(self, x):
        return self.linear.forward(x)


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(9, WIDTH), nn.Embedding(B, WIDTH)

    def forward(self, tokens):
        return self.tokens(tokens) + self.places(torch.arange(tokens.size(1)))


class Subclass(nn.ReLU):
    def forward(self, x):
        return torch.relu(x) - x.mean(0)


class Stochastic(Tied):
    def forward(self, x):
        return self.linear(x - x.mean(0)) if random.random() < 0.01 else self.linear(x)


class TorchStochastic(Tied):
    def forward(self, x):
        return self.linear(x - x.mean(0)) if torch.rand(()) < 0.01 else self.linear(x)


class Compiled(Tied):
    def forward(self, x):
        return checkpoint(lambda y: self.linear(y - y.mean(0)), x, use_reentrant=False)


class Cached(Tied):
    """What it keeps is where deepcopy does not follow."""

    def __deepcopy__(self, memo):
        return self

    def forward(self, x):
        return self.linear(x)


OUTSIDE = torch.ones(WIDTH)


class Swapped(Tied):
    """The examples as weights: the outputs of one are products with all others."""

    def forward(self, x):
        return torch.func.functional_call(self.linear, {"bias": x[:, 0]}, (x,))


def counting():
    calls = [0]

    def function(x):
        calls[0] += 1
        return x - x.mean(0) if calls[0] > 5 else x

    return function


class Mixer(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result.flip(0) if isinstance(result, torch.Tensor) else result


def _dispatched(x):
    with Mixer():
        return x * 2


def _compressed(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t - t.mean(0)):
        return x * x


def _threaded(x):
    with ThreadPoolExecutor(1) as pool:
        return x - pool.submit(lambda: x.mean(0)).result()


def hooked(kind):
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    if kind == "forward":
        module[0].register_forward_hook(lambda m, i, o: o - o.mean(0))
    elif kind == "pre":
        module.register_forward_pre_hook(lambda m, i: (i[0] - i[0].mean(0),))
    elif kind == "instance":
        module[1].forward = lambda x: x - x.mean(0)
    elif kind == "method":
        module = nn.Conv1d(WIDTH, WIDTH, 1)
        module._conv_forward = lambda x, w, b: F.conv1d(x - x.mean(0), w, b)
    return module


def bad_transformer(change):
    layer = nn.TransformerEncoderLayer(WIDTH, 1, 8, batch_first=True)
    change(layer)
    return layer


def _norm_over_examples(layer):
    layer.norm1 = nn.BatchNorm1d(4)


def _activation(layer):
    layer.activation = lambda x: x - x.mean(0)


def _block(layer):
    layer._ff_block = lambda x: x - x.mean(0)


SEQUENCES = (rows(4, WIDTH),)
TOKENS = (torch.arange(B * 4).reshape(B, 4) % 5,)
REFUSED = {
    "batch norm": (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)), (rows(),)),
    "batch norm in eval": (nn.BatchNorm1d(WIDTH).eval(), (rows(),)),
    "softmax(None)": (nn.Softmax(), (rows(),)),
    "softmax(0)": (nn.Softmax(dim=0), (rows(),)),
    "softmax(-2)": (nn.Softmax(dim=-2), (rows(),)),
    "flatten(0)": (nn.Flatten(0), (rows(),)),
    "flatten(0, 1)": (nn.Flatten(0, 1), SEQUENCES),
    "unflatten(0)": (nn.Unflatten(0, (2, 3)), (rows(),)),
    "layer norm": (nn.LayerNorm((B, WIDTH)), (rows(),)),
    "running instance norm": (nn.InstanceNorm1d(4, track_running_stats=True), SEQUENCES),
    "instance norm of a matrix": (nn.InstanceNorm1d(B), (rows(),)),
    "time first": (nn.LSTM(WIDTH, 4), SEQUENCES),
    "attention, time first": (nn.TransformerEncoderLayer(WIDTH, 1, 8), SEQUENCES),
    "sequence without batch": (nn.GRU(WIDTH, 4, batch_first=True), (rows(),)),
    "convolution without batch": (nn.Conv1d(B, 4, 3), (rows(),)),
    "pool without batch": (nn.MaxPool2d(2), (rows(4, 4)[:, :, :],)),
    "embedding with max_norm": (nn.Embedding(9, 4, max_norm=1.0), TOKENS),
    "embedding by frequency": (nn.Embedding(9, 4, scale_grad_by_freq=True), TOKENS),
    "bag of one row": (nn.EmbeddingBag(9, 4), (torch.arange(B),)),
    "buffer": (nn.Sequential(nn.Linear(WIDTH, WIDTH), Norm()), (rows(),)),
    "attribute": (Attribute(), (rows(),)),
    "counter": (Counter(), (rows(),)),
    "global": (Global(), (rows(),)),
    "class attribute": (ClassAttribute(), (rows(),)),
    "function": (Model(Reversed.apply), (rows(),)),
    "call": (Called(WIDTH, 3), (rows(),)),
    "tensor subclass": (Model(lambda x: x + torch.ones(WIDTH).as_subclass(Wrong)), (rows(),)),
    "own parameter": (Own(), (rows(),)),
    "weight used elsewhere": (Tied(), (rows(),)),
    "forward called": (Around(), (rows(),)),
    "trained positions": (Positions(), TOKENS),
    "subclass of a layer": (nn.Sequential(nn.Linear(WIDTH, 4), Subclass()), (rows(),)),
    "random branch": (Stochastic(), (rows(),)),
    "torch's random branch": (TorchStochastic(), (rows(),)),
    "checkpoint": (Compiled(), (rows(),)),
    "own deepcopy": (Cached(), (rows(),)),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 3)), (rows(),)),
    "hook": (hooked("forward"), (rows(),)),
    "pre-hook": (hooked("pre"), (rows(),)),
    "forward of an instance": (hooked("instance"), (rows(),)),
    "method of an instance": (hooked("method"), (rows(WIDTH, 2),)),
    "norm in a transformer": (bad_transformer(_norm_over_examples), SEQUENCES),
    "activation in a transformer": (bad_transformer(_activation), SEQUENCES),
    "block of a transformer": (bad_transformer(_block), SEQUENCES),
    "trained layer on states": (
        Model(lambda x: nn.functional.relu(x)[None].expand(2, -1, -1), out=WIDTH),
        (rows(),),
    ),
    "scaled by the number": (Model(lambda x: x / x.shape[0]), (rows(),)),
    "random": (Model(lambda x: x + torch.randn(WIDTH)), (rows(),)),
    "constant from outside": (Model(lambda x: x + OUTSIDE), (rows(),)),
    "parameters swapped": (
        Swapped(),
        (rows(),),
    ),
    "number of examples, by C": (
        Model(lambda x: x if math.gcd(x.size(0), 2) == 1 else -x),
        (rows(),),
    ),
    "nonlocal": (Model(counting()), (rows(),)),
    "dispatch": (Model(lambda x: _dispatched(x)), (rows(),)),
    "kept for later": (Model(lambda x: _compressed(x)), (rows(),)),
    "filled with the number": (
        Model(lambda x: x + torch.full((x.size(0), WIDTH), x.size(0))),
        (rows(),),
    ),
    "constant of the number": (Model(lambda x: x + x.new_full((WIDTH,), x.size(0))), (rows(),)),
    "median": (Model(lambda x: x - x.median()), (rows(),)),
    "attribute of a tensor": (Remembering(), (rows(),)),
    "thread": (Model(lambda x: _threaded(x)), (rows(),)),
    "softmax in a sequence": (nn.Sequential(nn.Linear(WIDTH, 2), nn.Softmax(0)), (rows(),)),
    "flattened twice": (nn.Sequential(nn.Flatten(), nn.Flatten(), nn.Flatten(0)), SEQUENCES),
    "norm after flatten": (nn.Sequential(nn.Flatten(), nn.LayerNorm((B, 24))), SEQUENCES),
    "two inputs": (Model(lambda x, y: x + y.mean(0)), (rows(), rows() + 1)),
    "paired across": (Model(lambda x, y: x + y.t()), (rows(), rows() + 1)),
    "hooked tensor": (Model(lambda x: _with_hook(x)), (rows(),)),
    "output without examples": (Model(lambda x: x.t(), WIDTH), (rows(),)),
    "generator": (Model(lambda x: F.gumbel_softmax(x, dim=1)), (rows(),)),
}


def _with_hook(x):
    x = x * 1
    x.register_hook(lambda g: g - g.mean(0))
    return x


@pytest.mark.parametrize(("module", "inputs"), REFUSED.values(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_refused_modules(module, inputs):
    reason = find_mixing(module, inputs)
    assert isinstance(reason, str)
    assert "\n" not in reason


@pytest.mark.filterwarnings("ignore")
def test_refused_scripts():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, 2)))
    assert find_mixing(scripted, (rows(),)) is not None
    assert find_mixing(torch.compile(nn.Linear(WIDTH, 2)), (rows(),)) is not None
    function = torch.jit.script(_centred)
    assert find_mixing(Model(function), (rows(),)) is not None


def _centred(x):
    return x - x.mean(0)


def _attend(x):
    q, k, v = x.chunk(3, dim=-1)
    scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    return (scores.softmax(dim=-1) @ v).mean(1)


def _heads(x):
    b, t, f = x.shape
    q = x.view(b, t, 2, f // 2).transpose(1, 2)
    x = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    return x.transpose(1, 2).reshape(b, t, f)[:, -1]


def _in_place(x):
    x = x * 2
    x += x
    return F.relu(x, inplace=True).clamp_(0, 1)


def _sizes(x):
    assert x.ndim == 2
    assert x.shape[1] == WIDTH
    parts = [x[:, i : i + 1] for i in range(x.shape[1])]
    return torch.cat(parts, dim=1) if isinstance(x, torch.Tensor) else x


SEPARATE = {
    "view": lambda x: x.view(x.size(0), -1),
    "view(-1, k)": lambda x: x.view(-1, WIDTH),
    "flatten": lambda x: torch.flatten(x, 1),
    "reshape": lambda x: x.reshape(x.shape[0], -1),
    "reshape, tuple": lambda x: torch.reshape(x, (x.shape[0], 2, 3)).flatten(1),
    "relu": F.relu,
    "cat": lambda x: torch.cat([x[:, :3], -x[:, 3:]], dim=1),
    "residual": lambda x: x + torch.tanh(x),
    "in place": _in_place,
    "sizes": _sizes,
    "constants": lambda x: (1 - x) * 2 + torch.arange(WIDTH) / torch.full((WIDTH,), 2.0),
    "new": lambda x: x + x.new_zeros(x.size(0), WIDTH) + torch.ones(x.size(0), 1),
    "device": lambda x: x + torch.ones(WIDTH, device=x.device, dtype=x.dtype),
    "to": lambda x: x.to(torch.float64).to(x.device).to("cpu").float(),
    "statistics": lambda x: (x - x.mean(1, keepdim=True)) / x.std(-1, keepdim=True),
    "normalize": F.normalize,
    "softmax": lambda x: F.softmax(x, -1) + F.log_softmax(x, dim=1) + x.softmax(1),
    "dropout": lambda x: F.dropout(x, 0.5),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "masked": lambda x: x.masked_fill(x < 0, 0.0),
    "maximum": lambda x: torch.maximum(x, x.flip(1)).max(x).clamp(min=0),
    "roll": lambda x: x.roll(1, 1) + x.flip(-1),
    "sort": lambda x: x.sort()[0] + torch.sort(x, descending=True).values + x.cumsum(1),
    "topk": lambda x: x.topk(WIDTH).values,
    "gather": lambda x: x.gather(1, x.argsort(1)),
    "permuted features": lambda x: x[:, torch.arange(WIDTH - 1, -1, -1)],
    "indices": lambda x: x[..., 0:1] + x[:, None, :].squeeze(1) + x[:, -1].unsqueeze(1),
    "split": lambda x: torch.cat([a * 2 for a in x.split(2, dim=1)], -1),
    "stack": lambda x: torch.stack([x, x], 1).sum(1) + torch.stack([x, x]).mean(0),
    "linear": lambda x: F.linear(x, torch.ones(WIDTH, WIDTH)) + x @ torch.ones(WIDTH, WIDTH),
    "einsum": lambda x: torch.einsum("bi,ij->bj", x, torch.eye(WIDTH)),
    "transposed twice": lambda x: (x.t() * 2).t() + x.T.T,
    "shapes compared": lambda x: x + x.relu() if x.shape == x.relu().shape else x,
    "pad": lambda x: F.pad(x, (1, 1))[:, 1:-1],
    "no_grad": lambda x: x + x.detach() * x.data,
    "tril": lambda x: (x[:, None] @ torch.tril(torch.ones(WIDTH, WIDTH)))[:, 0],
    "cosine": lambda x: x * F.cosine_similarity(x, x + 1).unsqueeze(1),
    "expanded": lambda x: x.unsqueeze(1).expand(-1, 3, -1).mean(1) + x[:, :1].expand(-1, WIDTH),
    "repeated": lambda x: x.repeat(1, 2)[:, ::2],
    "one hot": lambda x: x + F.one_hot(x.argmax(1), WIDTH),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("function", SEPARATE.values(), ids=SEPARATE)
def test_separate_functions(function, training):
    module = Model(function).train(training)
    assert find_mixing(module, (rows(),)) is None
    assert not influences(module, (rows(),))


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.layer = kind(WIDTH, 5, batch_first=True, **options)
        self.head = nn.Linear(5, 2)

    def forward(self, x, zeros=False):
        if zeros:
            x = x * 0
        out, state = self.layer(x)
        hidden = state[0] if isinstance(state, tuple) else state
        return self.head(out[:, -1, :5] + hidden[-1] + hidden.permute(1, 0, 2).mean(1))


class Started(nn.Module):
    """A recurrent layer with states given."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(WIDTH, 5, batch_first=True)

    def forward(self, x):
        h = torch.zeros(1, x.size(0), 5, device=x.device)
        out, (h, c) = self.layer(x, (h, h))
        return torch.cat([out[:, -1], h[-1], c.squeeze(0)], dim=1), {"out": out}


class Transformer(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("places", torch.randn(4, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        padding = tokens == 8
        x = self.embedding(tokens) + self.places[: tokens.size(1)]
        return self.head(self.encoder(x, src_key_padding_mask=padding).mean(dim=1))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"a": nn.Linear(WIDTH, 4), "b": nn.Linear(3, 4)})
        self.more = nn.ModuleList([nn.Linear(4, 4), nn.PReLU(), nn.Bilinear(4, 4, 2)])

    def forward(self, x, y=None, *rest, scale=1.0):
        x, y = self.parts["a"](x), self.parts["b"](y)
        for layer in self.more[:-1]:
            x = layer(x) * scale
        return self.more[-1](x, y), x


class Pixels(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.b = nn.ConvTranspose2d(8, 4, 2, 2)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = F.max_pool2d(F.gelu(self.norm(self.a(x))), 2)
        x = F.adaptive_avg_pool2d(self.b(F.avg_pool2d(x, 2)), 2)
        x = F.interpolate(x, scale_factor=2) + F.pad(x, (1, 1, 1, 1))
        x = F.group_norm(x, 2) + F.instance_norm(x) + F.layer_norm(x, x.shape[2:])
        return self.head(x.mean(dim=(2, 3)) + x.amax((-2, -1)) + F.relu(x).flatten(2).sum(2))


IMAGES = (rows(3, 16, 16),)
KNOWN = {
    "linear": (nn.Linear(WIDTH, 3), (rows(),)),
    "empty": (nn.Sequential(), (rows(),)),
    "cnn": (CNN(), (rows(1, 28, 28),)),
    **{f"Sequence {kind.__name__}": (Sequence(kind), TOKENS) for kind in (nn.RNN, nn.GRU, nn.LSTM)},
    "bidirectional": (Sequence(nn.LSTM, bidirectional=True, num_layers=2, dropout=0.5), TOKENS),
    **{f"states of {kind.__name__}": (Recurrent(kind), SEQUENCES) for kind in (nn.GRU, nn.LSTM)},
    "states given": (Started(), SEQUENCES),
    "transformer": (Transformer(), TOKENS),
    "transformer, norm first": (Transformer(norm_first=True, activation="gelu"), TOKENS),
    "two inputs": (Two(), (rows(), rows(3))),
    "images": (Pixels(), IMAGES),
    "features over time": (nn.Sequential(nn.Linear(WIDTH, 3), nn.LayerNorm(3)), SEQUENCES),
    "own attention": (
        Model(lambda x: _attend(torch.cat([x, x, x], -1)), WIDTH),
        SEQUENCES,
    ),
    "heads": (Model(_heads), SEQUENCES),
    "layers": (
        nn.Sequential(
            nn.ReflectionPad2d(1),
            nn.Conv2d(3, 8, 3, 2, bias=False),
            nn.InstanceNorm2d(8, affine=True),
            nn.LeakyReLU(inplace=True),
            nn.Dropout2d(0.5),
            nn.Sequential(nn.PixelShuffle(2), nn.Upsample(scale_factor=2), nn.AvgPool2d(2)),
            nn.AdaptiveMaxPool2d(2),
            nn.Flatten(),
            nn.Unflatten(1, (2, 4)),
            nn.Softmax(dim=2),
            nn.Flatten(-2),
            nn.Identity(),
            nn.LogSoftmax(-1),
        ),
        IMAGES,
    ),
    "bag": (nn.EmbeddingBag(9, 4), TOKENS),
    "frozen": (Model(lambda x: x, WIDTH).requires_grad_(False), (rows(),)),
}


@pytest.mark.parametrize(("module", "inputs"), KNOWN.values(), ids=KNOWN)
def test_known_modules(module, inputs):
    assert find_mixing(module, inputs) is None
    module = copy.deepcopy(module).eval()
    assert find_mixing(module, inputs) is None
    assert not influences(module, inputs)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("logistic", (13,)), ("mlp", (13,)), ("cnn", (1, 28, 28)), ("sequence", (80,))),
        *(("resnet18", (3, 32, 32)), ("resnet34", (3, 32, 32))),
    ],
)
def test_own_models(name, shape):
    kind = torch.long if name == "sequence" else torch.float32
    for size in (1, 2):
        inputs = (torch.zeros(size, *shape, dtype=kind),)
        assert find_mixing(build_model(name, shape=shape, outputs=10), inputs) is None


def test_nothing_is_left_behind():
    module = nn.Sequential(Norm(), Attribute(), nn.Dropout(), Counter(), Stochastic())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    parts = [(dict(vars(m)), len(m._forward_pre_hooks), m.training) for m in module.modules()]
    states = torch.get_rng_state(), random.getstate()
    for part in module:
        find_mixing(part, (rows(),))
    find_mixing(module, (rows(),))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert parts == [
        (dict(vars(m)), len(m._forward_pre_hooks), m.training) for m in module.modules()
    ]
    assert module[1].seen == []
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()


def test_a_model_that_is_its_own_copy_is_left_alone():
    module = Cached()
    assert "shares layers" in find_mixing(module, (rows(),))
    assert "forward" not in vars(module.linear)
    assert not module.linear._forward_pre_hooks


def test_layers_replaced_for_everyone(monkeypatch):
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x - x.mean(0))
    assert find_mixing(nn.Linear(WIDTH, WIDTH), (rows(),)) is not None


def test_never_an_exception():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert isinstance(find_mixing(CNN(), (rows(1, 28, 28),)), str)
    assert isinstance(find_mixing(CNN(), (rows(3, 28, 28),)), str)
    assert isinstance(find_mixing(Model(lambda x: 1 / 0), (rows(),)), str)
    assert isinstance(find_mixing(Model(lambda x: x), ()), str)


def test_the_mode_matters():
    module = Model(None)
    module.function = lambda x: x - x.mean(0) if module.training else x
    assert find_mixing(module, (rows(),)) is not None
    assert find_mixing(module.eval(), (rows(),)) is None


def test_the_reason_says_where():
    reason = find_mixing(Model(lambda x: x - x.mean(0)), (rows(),))
    assert reason.startswith("function mean over dimension 0 mixes the examples of a batch")
    assert "test_separation.py, line" in reason


STEPS = [
    *SEPARATE.values(),
    lambda x: x.t(),
    lambda x: x.unsqueeze(0),
    lambda x: x.unsqueeze(1),
    lambda x: x[0],
    lambda x: x[..., 0],
    lambda x: x[:, 0],
    lambda x: x.sum(0),
    lambda x: x.mean(-1),
    lambda x: x.sum(1, keepdim=True),
    lambda x: x.view(-1),
    lambda x: x.view(-1, 2),
    lambda x: x.view(x.shape[0], -1, 2),
    lambda x: x.reshape(-1, WIDTH),
    lambda x: x.flatten(0, 1),
    lambda x: x.flatten(),
    lambda x: x.squeeze(),
    lambda x: x.squeeze(0),
    lambda x: x.transpose(0, 1),
    lambda x: x.transpose(-1, -2),
    lambda x: x @ x.transpose(-1, -2),
    lambda x: x.softmax(0),
    lambda x: x.softmax(-1),
    lambda x: x.flip(0),
    lambda x: x.flip(-1),
    lambda x: x + x.mean(0),
    lambda x: x + x[..., :1],
    lambda x: x + x[:1],
    lambda x: torch.cat([x, x], 0),
    lambda x: torch.cat([x, x], -1),
    lambda x: torch.stack([x, x], 0),
    lambda x: torch.stack([x, -x], -1),
    lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: F.layer_norm(x, x.shape[1:]),
    lambda x: x.repeat(2, 1),
    lambda x: x.expand(2, *x.shape),
    lambda x: x.cumsum(0),
    lambda x: x.cumsum(-1),
    lambda x: x.unfold(-1, 2, 1),
    lambda x: F.avg_pool1d(x, 2, 1),
    lambda x: F.max_pool2d(x, 2, 1),
    lambda x: x.permute(*range(x.ndim - 1, -1, -1)),
    lambda x: x.movedim(0, -1),
    lambda x: F.linear(x, torch.ones(2, x.shape[-1])),
    lambda x: torch.ones(2, x.shape[0]) @ x,
]


class Composed(nn.Module):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.linear(x)
        kept = x
        for step in self.steps:
            x = step(x)
        return x + kept if x.shape == kept.shape else x


def test_compositions():
    """Models accepted as separate are separate, bit for bit, also where sizes coincide."""
    draw = random.Random(0)
    answered = 0
    for _ in range(1500):
        module = Composed(draw.choices(STEPS, k=draw.randint(1, 5)))
        inputs = (rows(),)
        if find_mixing(module, inputs) is None:
            answered += 1
            with contextlib.suppress(IndexError):
                assert not influences(module.eval(), inputs)
    assert answered > 100


def test_pairs_of_shapes():
    """Reshapes to any shape are accepted only if each example stays whole."""
    for shape in itertools.product((1, 2, 3, 6, -1), repeat=3):
        module = Model(lambda x, shape=shape: x.reshape(shape).reshape(x.size(0), -1))
        try:
            wrong = influences(module, (rows(),))
        except RuntimeError:
            wrong = True
        accepted = find_mixing(module, (rows(),)) is None
        assert not (accepted and wrong)
