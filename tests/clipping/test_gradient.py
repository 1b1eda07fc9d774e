"""Every layer and whole models against one example at a time."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pacdp.clipping import ClippedGradient, CrossEntropy
from pacdp.clipping.numerics import shrink_bound
from pacdp.errors import InputError
from pacdp.models.resnet import ResNet

from .models import CNN, Sequence, assert_same, cnn, reference


def summed(outputs, targets):
    """A loss for outputs of any shape, with a different weight for every number."""
    flat = outputs.flatten(1).float()
    weights = torch.linspace(-1, 2, flat.shape[1])
    return (flat * weights).sum(1) + 0.1 * flat.square().sum(1)


def images(size=5, channels=4, side=9):
    return torch.randn(size, channels, side, side)


class Tied(nn.Module):
    """Embedding and head share their weight; the middle layer is used twice."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.middle(torch.tanh(self.middle(self.embedding(tokens)))))


class Scaled(nn.Module):
    """Owns a parameter itself, beside a layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6))
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x * self.scale)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=False)[0])


LAYERS = {
    "linear": (lambda: nn.Linear(7, 3), lambda: torch.randn(5, 7)),
    "linear without bias": (lambda: nn.Linear(7, 3, bias=False), lambda: torch.randn(5, 7)),
    "linear over a sequence": (lambda: nn.Linear(7, 3), lambda: torch.randn(5, 4, 7)),
    "linear over few long steps": (lambda: nn.Linear(90, 80), lambda: torch.randn(5, 2, 90)),
    "linear over a grid": (lambda: nn.Linear(7, 3), lambda: torch.randn(5, 2, 3, 7)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), lambda: torch.randn(5, 4, 12)),
    "conv1d strided, padded": (
        lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2),
        lambda: torch.randn(5, 4, 13),
    ),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3), images),
    "conv2d strided": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), images),
    "conv2d uneven": (lambda: nn.Conv2d(4, 6, (3, 2), stride=(1, 3), padding=(0, 2)), images),
    "conv2d dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2, padding=2), images),
    "conv2d same": (lambda: nn.Conv2d(4, 6, 3, dilation=2, padding="same"), images),
    "conv2d circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), images),
    "conv2d in groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), images),
    "conv2d depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), images),
    "conv2d by positions": (
        lambda: nn.Conv2d(64, 64, 3, padding=1),
        lambda: images(3, 64, 3),
    ),
    "conv2d by positions, strided": (
        lambda: nn.Conv2d(64, 64, 3, stride=2, padding=1),
        lambda: images(3, 64, 5),
    ),
    "conv2d large": (lambda: nn.Conv2d(32, 32, 3, padding=1), lambda: images(2, 32, 24)),
    "conv3d, by torch.func": (
        lambda: nn.Conv3d(2, 3, 2),
        lambda: torch.randn(3, 2, 4, 4, 4),
    ),
    "transposed, by torch.func": (lambda: nn.ConvTranspose2d(4, 3, 3), images),
    "prelu, by torch.func": (lambda: nn.PReLU(4), images),
    "group norm": (lambda: nn.GroupNorm(2, 4), images),
    "layer norm": (lambda: nn.LayerNorm(9), images),
    "layer norm over images": (lambda: nn.LayerNorm([4, 9, 9]), images),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), images),
    "embedding": (lambda: nn.Embedding(11, 3), lambda: torch.randint(0, 11, (5, 8))),
    "embedding, padded": (
        lambda: nn.Embedding(11, 3, padding_idx=2),
        lambda: torch.randint(0, 4, (5, 8)),
    ),
    "embedding of single tokens": (
        lambda: nn.Embedding(11, 3),
        lambda: torch.randint(0, 11, (5,)),
    ),
    "tied and used twice": (Tied, lambda: torch.randint(0, 11, (5, 3))),
    "own parameter, by torch.func": (Scaled, lambda: torch.randn(5, 6)),
    "attention, by torch.func": (Attention, lambda: torch.randn(5, 3, 6)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bound", [0.05, 5.0])
def test_layers(name, bound):
    torch.manual_seed(0)
    make, draw = LAYERS[name]
    layer, inputs = make(), draw()
    targets = torch.zeros(len(inputs))
    expected, norms = reference(layer, summed, inputs, targets, bound)
    engine = ClippedGradient(layer, summed, adjacency="zero-out")
    assert_same(engine(inputs, targets, clipping_bound=bound).values, expected)
    torch.testing.assert_close(engine.norms(inputs, targets).double(), norms, rtol=1e-4, atol=1e-6)


RECURRENT = {
    "gru": {"kind": nn.GRU},
    "lstm": {"kind": nn.LSTM},
    "rnn": {"kind": nn.RNN},
    "relu rnn without bias": {"kind": nn.RNN, "nonlinearity": "relu", "bias": False},
    "two layers, both ways": {"kind": nn.GRU, "num_layers": 2, "bidirectional": True},
    "lstm, two layers, both ways": {"kind": nn.LSTM, "num_layers": 2, "bidirectional": True},
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models(name):
    torch.manual_seed(0)
    model = Sequence(**RECURRENT[name])
    tokens, targets = torch.randint(0, 20, (6, 7)), torch.randint(0, 4, (6,))
    before = model(tokens)
    expected, norms = reference(model, CrossEntropy(), tokens, targets, 0.5)
    engine = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    assert_same(engine(tokens, targets, clipping_bound=0.5).values, expected)
    torch.testing.assert_close(engine.norms(tokens, targets).double(), norms, rtol=1e-4, atol=1e-6)
    # The layer is itself again afterwards.
    torch.testing.assert_close(model(tokens), before)
    assert "forward" not in model.recurrent.__dict__


def test_models_whose_layers_do_not_see_examples_first_run_on_each_example_alone():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 2)

        def forward(self, x):
            return self.layer(x.transpose(0, 1)).transpose(0, 1)

    torch.manual_seed(0)
    model, inputs, targets = TimeFirst(), torch.randn(5, 3, 6), torch.zeros(5)
    engine = ClippedGradient(model, summed, adjacency="zero-out")
    assert engine.describe_strategy(inputs, targets).startswith("each example by itself")
    expected, _ = reference(model, summed, inputs, targets, 0.3)
    assert_same(engine(inputs, targets, clipping_bound=0.3).values, expected)


MODELS = {
    "logistic": (lambda: nn.Linear(12, 3), (12,), 3),
    "mlp": (lambda: nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)), (12,), 3),
    "cnn": (CNN, (1, 28, 28), 10),
    "cnn as a chain": (cnn, (1, 28, 28), 10),
    # With a smooth activation: a kink may fall on either side, alone or in a batch.
    "resnet-18": (
        lambda: ResNet((2, 2, 2, 2), channels=3, outputs=10, dropout=0.0, activation=F.silu),
        (3, 32, 32),
        10,
    ),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("microbatch", [None, 3])
def test_models(name, microbatch):
    torch.manual_seed(0)
    make, shape, classes = MODELS[name]
    model = make()
    inputs, targets = torch.randn(7, *shape), torch.randint(0, classes, (7,))
    bound = float(reference(model, CrossEntropy(), inputs, targets, 1.0)[1].median())
    expected, _ = reference(model, CrossEntropy(), inputs, targets, bound)
    engine = ClippedGradient(model, CrossEntropy(), adjacency="zero-out", microbatch=microbatch)
    assert_same(engine(inputs, targets, clipping_bound=bound).values, expected)


# Layers for which Opacus has rules of its own. It gives a gradient to an Embedding's padding row,
# which autograd does not.
KNOWN_TO_OPACUS = [
    *("linear", "linear over a sequence", "conv1d", "conv2d", "conv2d strided", "conv2d in groups"),
    *("group norm", "layer norm", "instance norm", "embedding"),
]


def by_opacus(model, loss, inputs, targets, bound):
    opacus = pytest.importorskip("opacus")
    wrapped = opacus.GradSampleModule(model, loss_reduction="sum")
    loss(wrapped(inputs), targets).sum().backward()
    samples = {n: p.grad_sample.double() for n, p in model.named_parameters()}
    norms = torch.sqrt(sum(g.flatten(1).square().sum(1) for g in samples.values()))
    factors = (shrink_bound(bound, 1) / norms).clamp(max=1)
    return {n: torch.tensordot(factors, g, 1) for n, g in samples.items()}


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("name", KNOWN_TO_OPACUS)
def test_opacus_agrees_on_layers(name):
    torch.manual_seed(0)
    make, draw = LAYERS[name]
    layer, inputs = make(), draw()
    targets = torch.zeros(len(inputs))
    found = ClippedGradient(layer, summed, adjacency="zero-out")(
        inputs, targets, clipping_bound=0.7
    )
    assert_same(found.values, by_opacus(layer, summed, inputs, targets, 0.7))


@pytest.mark.filterwarnings("ignore:Full backward hook")
@pytest.mark.parametrize("make", [CNN, cnn])
def test_opacus_agrees_on_a_model(make):
    torch.manual_seed(0)
    model = make()
    inputs, targets = torch.randn(7, 1, 28, 28), torch.randint(0, 10, (7,))
    found = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")(
        inputs, targets, clipping_bound=0.7
    )
    assert_same(found.values, by_opacus(model, CrossEntropy(), inputs, targets, 0.7))


# --- the edges -------------------------------------------------------------------------------

CHAIN = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


class Plain(nn.Module):
    """The same as CHAIN, but not a plain sequence."""

    def __init__(self):
        super().__init__()
        self.inner = CHAIN

    def forward(self, x):
        return self.inner(x)


@pytest.fixture(params=["chain", "hooks"])
def engine(request):
    model = CHAIN if request.param == "chain" else Plain()
    return ClippedGradient(model, CrossEntropy(), adjacency="zero-out")


def norm(values):
    return torch.sqrt(sum(value.double().square().sum() for value in values.values()))


def test_an_empty_batch_sums_to_zero(engine):
    total = engine(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), clipping_bound=1.0)
    assert norm(total.values) == 0
    assert total.sensitivity == 1.0
    assert len(total.values) == 4


def test_one_example(engine):
    total = engine(torch.randn(1, 3), torch.tensor([1]), clipping_bound=1e-3)
    assert 0.99e-3 < norm(total.values) <= 1e-3


def test_zero_gradients_do_not_divide():
    model = nn.Linear(3, 2)
    engine = ClippedGradient(model, lambda out, y: 0 * out.sum(1), adjacency="zero-out")
    total = engine(torch.randn(4, 3), torch.zeros(4), clipping_bound=1.0)
    assert norm(total.values) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_examples_that_are_not_finite_contribute_zero(engine, bad):
    torch.manual_seed(0)
    inputs, targets = torch.randn(6, 3), torch.randint(0, 2, (6,))
    rest = [0, 1, 3, 5]
    expected = engine(inputs[rest], targets[rest], clipping_bound=0.3).values
    inputs[2, 1] = bad
    inputs[4, 0] = bad
    found = engine(inputs, targets, clipping_bound=0.3)
    assert all(torch.isfinite(value).all() for value in found.values.values())
    for name, value in found.values.items():
        torch.testing.assert_close(value, expected[name])


def test_a_broken_model_sums_to_zero(engine):
    inputs = torch.full((4, 3), float("nan"))
    total = engine(inputs, torch.zeros(4, dtype=torch.long), clipping_bound=1.0)
    assert norm(total.values) == 0


@pytest.mark.parametrize("bound", [1e-12, 1e12])
def test_tiny_and_huge_bounds(engine, bound):
    torch.manual_seed(0)
    inputs, targets = torch.randn(6, 3), torch.randint(0, 2, (6,))
    total = engine(inputs, targets, clipping_bound=bound)
    assert norm(total.values) <= 6 * bound
    if bound >= 1e12:
        expected, _ = reference(engine.module, CrossEntropy(), inputs, targets, bound)
        assert_same(total.values, expected)


def test_half_precision_models_are_summed_in_single():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(torch.bfloat16)
    engine = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    inputs, targets = torch.randn(9, 8).to(torch.bfloat16), torch.randint(0, 3, (9,))
    total = engine(inputs, targets, clipping_bound=0.1)
    assert all(value.dtype == torch.float32 for value in total.values.values())
    expected, _ = reference(model, CrossEntropy(), inputs, targets, 0.1)
    assert_same(total.values, expected, tolerance=2e-2)
    assert norm(total.values) <= 0.9


def test_frozen_parameters_cost_nothing_and_get_nothing():
    torch.manual_seed(0)
    model = CNN()
    for parameter in model.first.parameters():
        parameter.requires_grad_(False)
    inputs, targets = torch.randn(4, 1, 28, 28), torch.randint(0, 10, (4,))
    engine = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    expected, _ = reference(model, CrossEntropy(), inputs, targets, 0.5)
    assert_same(engine(inputs, targets, clipping_bound=0.5).values, expected)
    assert "first.weight" not in expected


def test_unused_layers_get_zero():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    engine = ClippedGradient(Unused(), CrossEntropy(), adjacency="zero-out")
    total = engine(torch.randn(4, 3), torch.zeros(4, dtype=torch.long), clipping_bound=1.0)
    assert total.values["unused.weight"].abs().sum() == 0
    assert total.values["used.weight"].abs().sum() > 0


def test_several_inputs():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(3, 2), nn.Linear(4, 2)

        def forward(self, a, b):
            return self.left(a) + self.right(b)

    torch.manual_seed(0)
    model, inputs = Pair(), (torch.randn(5, 3), torch.randn(5, 4))
    targets = torch.randint(0, 2, (5,))
    expected, _ = reference(model, CrossEntropy(), inputs, targets, 0.4)
    engine = ClippedGradient(model, CrossEntropy(), adjacency="zero-out", microbatch=2)
    assert_same(engine(inputs, targets, clipping_bound=0.4).values, expected)


def test_in_place_activations_after_a_layer_are_right():
    torch.manual_seed(0)
    model = Plain()
    model.inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    inputs, targets = torch.randn(6, 3), torch.randint(0, 2, (6,))
    expected, _ = reference(model, CrossEntropy(), inputs, targets, 0.2)
    engine = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    assert_same(engine(inputs, targets, clipping_bound=0.2).values, expected)


def test_an_input_changed_in_place_is_noticed():
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            x = x * 1
            y = self.layer(x)
            x.add_(1.0)
            return y + x

    engine = ClippedGradient(Changes(), CrossEntropy(), adjacency="zero-out")
    with pytest.raises(InputError, match=r"no gradient for one example .* inplace operation"):
        engine(torch.randn(4, 3), torch.zeros(4, dtype=torch.long), clipping_bound=1.0)


def assert_alone(model, inputs, targets):
    """The engine runs each example by itself, and its sum is right."""
    engine = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    assert engine.describe_strategy(inputs, targets).startswith("each example by itself")
    expected, _ = reference(model, CrossEntropy(), inputs, targets, 0.3)
    assert_same(engine(inputs, targets, clipping_bound=0.3).values, expected)


def test_a_weight_used_outside_its_layer_runs_on_each_example_alone():
    class Behind(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return x @ self.layer.weight.T

    assert_alone(Behind(), torch.randn(4, 3), torch.zeros(4, dtype=torch.long))


def test_a_loss_must_be_one_per_example():
    engine = ClippedGradient(Plain(), F.cross_entropy, adjacency="zero-out")
    with pytest.raises(InputError, match="must give one value for each"):
        engine(torch.randn(4, 3), torch.zeros(4, dtype=torch.long), clipping_bound=1.0)


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf"), 1e-13, 1e13])
def test_bounds_outside_the_proof_are_refused(engine, bound):
    with pytest.raises(InputError, match="clipping_bound"):
        engine(torch.randn(1, 3), torch.tensor([0]), clipping_bound=bound)


# --- the guarantee ---------------------------------------------------------------------------

numbers = st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, 1e-30, 1e-8, 1e8])


@settings(max_examples=150)
@given(data=st.data(), exponent=st.integers(-6, 6))
def test_no_example_moves_the_sum_by_more_than_its_sensitivity(data, exponent):
    """Zeroing out or swapping any one example, however extreme, on both paths."""
    bound = 10.0**exponent
    rows = [data.draw(st.lists(numbers, min_size=3, max_size=3)) for _ in range(4)]
    targets = torch.tensor(data.draw(st.lists(st.integers(0, 1), min_size=4, max_size=4)))
    inputs = torch.tensor(rows)
    model = data.draw(st.sampled_from([CHAIN, Plain()]))
    engine = ClippedGradient(model, CrossEntropy(), adjacency="replace-one")
    whole = engine(inputs[:3], targets[:3], clipping_bound=bound)
    without = engine(inputs[1:3], targets[1:3], clipping_bound=bound).values
    swapped = engine(inputs[1:4], targets[1:4], clipping_bound=bound).values
    # What remains is rounding of sums of three terms, each at most C.
    rounding = 1e-6 * 3 * bound
    zeroed = norm({n: whole.values[n] - without[n] for n in without})
    replaced = norm({n: whole.values[n] - swapped[n] for n in swapped})
    assert zeroed <= bound + rounding
    assert replaced <= whole.sensitivity + rounding
    assert whole.sensitivity == 2 * bound


@settings(max_examples=100)
@given(seed=st.integers(0, 10**6), scale=st.floats(-8, 0))
def test_cancelling_positions_do_not_hide_a_gradient(seed, scale):
    """Time steps that nearly cancel, where inner products lose every digit."""
    torch.manual_seed(seed)
    layer = nn.Linear(64, 64, bias=False)
    assert layer.weight.requires_grad
    inputs = torch.randn(1, 1, 64).repeat(3, 2, 1)
    inputs[:, 1] += 10.0**scale * torch.randn(3, 64)
    signs = torch.tensor([1.0, -1.0])[None, :, None]

    def loss(outputs, targets):
        return (outputs * signs * 1e3).sum((1, 2))

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x)

    engine = ClippedGradient(Wrapped(), loss, adjacency="zero-out")
    for example in range(3):
        one = slice(example, example + 1)
        total = engine(inputs[one], torch.zeros(1), clipping_bound=1e-3)
        assert norm(total.values) <= 1e-3
