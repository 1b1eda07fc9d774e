"""Ways to a silently wrong sum, each found by someone who tried to break the engine."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pacdp.clipping import (
    BinaryCrossEntropy,
    ClippedGradient,
    CrossEntropy,
    SimulatedNoise,
    SquaredError,
    StackedGradient,
    check_model,
    clip_upload,
)
from pacdp.errors import InputError

from .models import assert_same, reference


def engine(model, loss=None):
    return ClippedGradient(model, loss or CrossEntropy(), adjacency="zero-out")


def classes(size, number=2):
    return torch.arange(size) % number


def assert_right(model, inputs, targets, bound=0.3, loss=None):
    loss = loss or CrossEntropy()
    expected, _ = reference(model, loss, inputs, targets, bound)
    assert_same(engine(model, loss)(inputs, targets, clipping_bound=bound).values, expected)


class Hidden(nn.Module):
    """Hides a sequential model, so that another strategy is chosen."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *inputs):
        return self.inner(*inputs)


@pytest.mark.parametrize("wrap", [nn.Sequential, Hidden])
@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (SquaredError(), torch.randn(8)),
        (SquaredError(), torch.randn(1, 8)),
        (BinaryCrossEntropy(), torch.zeros(8, 1)),
        (CrossEntropy(), torch.zeros(8, 3)),
    ],
)
def test_losses_never_broadcast_one_example_over_another(wrap, loss, targets):
    with pytest.raises(InputError, match="must have"):
        engine(wrap(nn.Linear(4, 1)), loss)(torch.randn(8, 4), targets, clipping_bound=1.0)


def test_the_same_activation_twice_is_used_twice():
    torch.manual_seed(0)
    shared = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 6), shared, nn.Linear(6, 6), shared, nn.Linear(6, 2))
    assert_right(model, torch.randn(5, 4), classes(5))


class UsedTwice(nn.Module):
    """A weight that is used by its own layer and elsewhere."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(F.linear(self.layer(x), self.layer.weight))


class InADict(nn.Module):
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4))

        def forward(self, x):
            return {"scaled": x * self.scale}

    def __init__(self):
        super().__init__()
        self.inner = self.Inner()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.inner(x)["scaled"])


class DropsInside(nn.Module):
    """Owns a parameter, so that torch.func runs it, and draws anew when it does."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))
        self.drop = nn.Dropout()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.drop(x * self.scale))


@pytest.mark.parametrize("make", [UsedTwice, InADict])
def test_what_the_layers_cannot_tell_runs_on_each_example_alone(make):
    torch.manual_seed(0)
    model, inputs = make(), torch.randn(6, 4)
    assert engine(model).describe_strategy(inputs, classes(6)).startswith("each example by itself")
    assert_right(model, inputs, classes(6))


def test_dropout_in_a_module_with_parameters_of_its_own_draws_for_each_example():
    torch.manual_seed(0)
    total = engine(DropsInside())(torch.randn(1, 4).repeat(64, 1), classes(64), clipping_bound=1.0)
    norm = torch.sqrt(sum(value.double().square().sum() for value in total.values.values()))
    assert 0 < norm <= 64


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
def test_old_weight_norm_is_right():
    torch.manual_seed(0)
    model = Hidden(torch.nn.utils.weight_norm(nn.Linear(4, 2)))
    assert_right(model, torch.randn(6, 4), classes(6))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_new_weight_norm_is_right():
    torch.manual_seed(0)
    model = Hidden(torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))
    assert_right(model, torch.randn(6, 4), classes(6))


class Transformer(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, **options)
        self.head = nn.Linear(6, 2)

    def forward(self, x, padding):
        return self.head(self.layer(x, src_key_padding_mask=padding).mean(1))


def test_a_transformer_layer_with_a_padding_mask_is_right():
    torch.manual_seed(0)
    padding = torch.zeros(5, 4, dtype=torch.bool)
    padding[1, 2:] = True
    padding[3, 3:] = True
    model = Transformer(batch_first=True)
    assert_right(model, (torch.randn(5, 4, 6), padding), classes(5))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Transformer(batch_first=False),
        lambda: nn.LSTM(4, 3),
        lambda: nn.MultiheadAttention(4, 2),
    ],
)
def test_time_first_layers_are_refused_with_a_way_out(make):
    with pytest.raises(InputError, match="use batch_first=True"):
        engine(make())


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x.transpose(0, 1)).mean(0)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_first_dimension_that_only_looks_like_the_batch_is_noticed(size):
    torch.manual_seed(0)
    assert_right(TimeFirst(), torch.randn(size, size, 3), classes(size))


@pytest.mark.parametrize("wrap", [nn.Sequential, Hidden])
def test_tiny_inputs_do_not_hide_huge_gradients(wrap):
    model = wrap(nn.Linear(1000, 1, bias=False))
    inputs, targets = torch.full((1, 1000), 2.5e-23), torch.full((1, 1), 1e18)
    for bound in (1e-3, 1e-6):
        total = engine(model, SquaredError())(inputs, targets, clipping_bound=bound)
        assert next(iter(total.values.values())).double().norm() <= bound


@pytest.mark.parametrize("wrap", [nn.Sequential, Hidden])
def test_long_sums_of_squares_do_not_fall_short(wrap):
    torch.manual_seed(0)
    model = wrap(nn.Linear(1_000_000, 1, bias=False))
    inputs = torch.rand(1, 1_000_000)
    total = engine(model, SquaredError())(inputs, torch.ones(1, 1), clipping_bound=1e-3)
    assert next(iter(total.values.values())).double().norm() <= 1e-3


def test_noise_streams_do_not_collide():
    # The key of a stream is all of it: torch's own seeding would use 32 bits, and repeat.
    keys = [(20, 205), (60, 48)]
    first, second = (
        SimulatedNoise(seed=0, client=client, round=round_).normals(2) for client, round_ in keys
    )
    assert not torch.equal(first, second)
    draws = {
        tuple(SimulatedNoise(seed=0, client=c, round=r).normals(2).tolist())
        for c in range(100)
        for r in range(100)
    }
    assert len(draws) == 10_000


def test_the_state_of_the_generator_is_where_it_is_expected():
    """MT19937 seeded with 5489 starts with known words (Matsumoto and Nishimura 1998)."""
    state = torch.Generator().manual_seed(5489).get_state()
    words = state[24 : 24 + 8 * 624].view(torch.int64)
    expected = [5489]
    for n in range(1, 624):
        last = expected[-1]
        expected.append((1812433253 * (last ^ (last >> 30)) + n) & 0xFFFFFFFF)
    assert words.tolist() == expected


def test_present_is_a_mask_and_not_a_weight():
    stacked = StackedGradient(nn.Linear(3, 2), CrossEntropy(), adjacency="zero-out")
    inputs, targets = torch.randn(2, 4, 3), torch.zeros(2, 4, dtype=torch.long)
    for wrong in (torch.full((2, 4), 50.0), torch.ones(4, dtype=torch.bool)):
        with pytest.raises(InputError, match="must be bool of shape"):
            stacked(
                *(stacked.parameters(models=2), inputs, targets),
                clipping_bounds=1.0,
                present=wrong,
            )


def mlp():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.mark.parametrize("wrap", [lambda model: model, Hidden])
def test_a_model_that_changes_is_looked_at_again(wrap):
    torch.manual_seed(0)
    inner = mlp()
    model = wrap(inner)
    made = engine(model)
    inputs, targets = torch.randn(5, 4), classes(5)

    def right():
        expected, _ = reference(model, CrossEntropy(), inputs, targets, 0.3)
        assert_same(made(inputs, targets, clipping_bound=0.3).values, expected)

    right()
    inner[0].weight.requires_grad_(False)
    right()
    inner[0].weight.requires_grad_(True)
    right()
    inner.load_state_dict(mlp().state_dict(), assign=True)
    right()
    inner[2] = nn.Linear(3, 2)
    right()
    inner[1] = nn.BatchNorm1d(3)
    with pytest.raises(InputError, match="mixes examples"):
        made(inputs, targets, clipping_bound=0.3)


def test_hooks_are_not_passed_over():
    torch.manual_seed(0)
    model, inputs, targets = mlp(), torch.randn(9, 4), classes(9)
    before = engine(model)
    before(inputs, targets, clipping_bound=0.3)
    model[0].register_forward_hook(lambda layer, inputs, output: output * 2)
    assert_right(model, inputs, targets)
    # Also by an engine that was made before the hook.
    expected, _ = reference(model, CrossEntropy(), inputs, targets, 0.3)
    assert_same(before(inputs, targets, clipping_bound=0.3).values, expected)


def test_inference_mode_is_refused():
    with torch.inference_mode(), pytest.raises(InputError, match="inference_mode"):
        engine(Hidden(mlp()))(torch.randn(5, 4), classes(5), clipping_bound=1.0)


class MixesInTraining(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        x = F.batch_norm(x, torch.zeros(4), torch.ones(4), training=self.training)
        return self.layer(x)


def test_the_check_looks_at_training_too():
    torch.manual_seed(0)
    model = MixesInTraining().eval()
    with pytest.raises(InputError, match="examples must not"):
        check_model(model, CrossEntropy(), torch.randn(6, 4), classes(6))
    assert not model.training


def test_own_kinds_of_batch_norm_are_refused():
    class Mine(nn.modules.batchnorm._BatchNorm):
        def _check_input_dim(self, values):
            pass

    with pytest.raises(InputError, match=r"Mine.*mixes examples"):
        engine(nn.Sequential(nn.Linear(4, 3), Mine(3)))


def test_half_precision_uploads_are_clipped_in_single():
    value = clip_upload({"w": torch.rand(999).bfloat16()}, bound=1.0, adjacency="zero-out")
    assert value.values["w"].double().norm() <= 1.0


def test_one_layer_in_two_places_is_one_layer():
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Hidden(shared), Hidden(shared)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.second(torch.tanh(self.first(x))))

    assert_right(Two(), torch.randn(5, 4), classes(5))


def test_a_recurrent_layer_with_its_own_forward_is_not_replaced():
    class Louder(nn.LSTM):
        def forward(self, x):
            return super().forward(x)[0] * 3

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = Louder(4, 3, batch_first=True)
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.recurrent(x)[:, -1])

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_right(Model(), torch.randn(5, 3, 4), classes(5))


def test_sequences_of_one_step():
    torch.manual_seed(0)

    class Short(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.GRU(4, 3, batch_first=True)
            self.head = nn.Linear(3, 2)

        def forward(self, x):
            return self.head(self.recurrent(input=x, hx=torch.ones(1, len(x), 3))[0][:, -1])

    assert_right(Short(), torch.randn(5, 1, 4), classes(5))


def test_keyword_inputs_and_group_norm_without_positions():
    torch.manual_seed(0)

    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), nn.GroupNorm(2, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.norm(self.layer(input=x)))

    assert_right(Keywords(), torch.randn(5, 4), classes(5))
