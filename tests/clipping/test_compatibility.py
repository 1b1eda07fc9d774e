"""Models that cannot be trained privately are refused by name, with an alternative."""

import pytest
import torch
from torch import nn

from pacdp.clipping import (
    ClippedGradient,
    CrossEntropy,
    check_model,
    require_private,
    without_batch_norm,
)
from pacdp.errors import InputError

from .models import CNN, Sequence


def with_batch_norm():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 2)
    )


def test_batch_norm_is_refused_by_name_and_replaced_by_one_call():
    model = with_batch_norm()
    with pytest.raises(InputError, match=r"layer 1 \(BatchNorm2d\).*without_batch_norm"):
        ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    way_out = without_batch_norm(model)
    assert isinstance(way_out[1], nn.GroupNorm)
    assert isinstance(model[1], nn.BatchNorm2d)
    engine = ClippedGradient(way_out, CrossEntropy(), adjacency="zero-out")
    inputs, targets = torch.randn(4, 3, 6, 6), torch.tensor([0, 1, 1, 0])
    assert engine(inputs, targets, clipping_bound=1.0).values["1.weight"].shape == (6,)
    check_model(way_out, CrossEntropy(), inputs, targets)


def test_groups_divide_the_channels():
    assert without_batch_norm(nn.BatchNorm2d(48)).num_groups == 24
    assert without_batch_norm(nn.BatchNorm2d(7)).num_groups == 7
    assert without_batch_norm(nn.BatchNorm2d(64), groups=4).num_groups == 4
    assert without_batch_norm(nn.BatchNorm2d(64, affine=False)).affine is False


def test_rows_of_numbers_keep_what_they_say():
    model = without_batch_norm(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert model[1](model[0](inputs)).std() > 0.5
    check_model(model, CrossEntropy(), inputs, torch.tensor([0, 1, 0, 1, 0]))


def test_running_statistics_are_refused():
    model = nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True))
    with pytest.raises(InputError, match=r"layer 0 .* keeps running statistics"):
        require_private(model)


@pytest.mark.parametrize("make", [CNN, Sequence])
def test_good_models_pass_the_check(make):
    torch.manual_seed(0)
    inputs = torch.randn(3, 1, 28, 28) if make is CNN else torch.randint(0, 20, (3, 5))
    check_model(make(), CrossEntropy(), inputs, torch.tensor([0, 1, 2]))


class Mixes(nn.Module):
    """Centres features over the batch, as a BatchNorm by hand would."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x - x.mean(0))


class Leaks(nn.Module):
    """Adds something of the other examples after the layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        y = self.layer(x)
        return y + 0.5 * y.roll(1, 0)


@pytest.mark.parametrize("make", [Mixes, Leaks])
def test_modules_that_mix_examples_are_found_by_number(make):
    torch.manual_seed(0)
    with pytest.raises(InputError, match=r"must not see each other|not the sum"):
        check_model(make(), CrossEntropy(), torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))


def test_one_example_tells_nothing():
    with pytest.raises(InputError, match="at least 2"):
        check_model(nn.Linear(3, 2), CrossEntropy(), torch.randn(1, 3), torch.tensor([0]))


def test_dropout_does_not_disturb_the_check():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 2))
    check_model(model, CrossEntropy(), torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
