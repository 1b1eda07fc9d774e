"""The models: sizes, seeds, and gradients that belong to one record each."""

import pytest
import torch

from pacdp.clipping import ClippedGradient, CrossEntropy
from pacdp.errors import InputError
from pacdp.models import MODELS, build_model, count_parameters

RECORDS = {
    "logistic": (13,),
    "mlp": (13,),
    "cnn": (1, 28, 28),
    "resnet18": (3, 32, 32),
    "resnet34": (3, 32, 32),
    "sequence": (20,),
}


def records(name, size=3):
    torch.manual_seed(0)
    if name == "sequence":
        return torch.randint(0, 80, (size, *RECORDS[name]))
    return torch.randn(size, *RECORDS[name])


def test_every_model_is_tried_here():
    assert set(RECORDS) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_models_answer_and_can_be_clipped(name):
    model = build_model(name, shape=RECORDS[name], outputs=10)
    assert model(records(name)).shape == (3, 10)
    gradient = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    total = gradient(records(name), torch.arange(3), clipping_bound=0.5)
    assert sum(value.numel() for value in total.values.values()) == count_parameters(model)
    norm = sum(value.double().square().sum() for value in total.values.values()) ** 0.5
    assert 0 < float(norm) <= 3 * 0.5


@pytest.mark.parametrize("name", MODELS)
def test_no_record_sees_another(name):
    """In training as well: nothing but dropout may differ, and that is turned off here."""
    model = build_model(name, shape=RECORDS[name], outputs=4).eval()
    inputs = records(name)
    alone = torch.cat([model(inputs[i : i + 1]) for i in range(3)])
    assert torch.allclose(model(inputs), alone, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_the_same_seed_gives_the_same_weights(name):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    one, same, other = (
        build_model(name, shape=RECORDS[name], outputs=4, seed=s) for s in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(a, b)
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_sizes():
    # The published ResNets for 32×32 images, GroupNorm having BatchNorm's parameters.
    sizes = {"cnn": 21_840, "resnet18": 11_173_962, "resnet34": 21_282_122}
    for name, size in sizes.items():
        assert count_parameters(build_model(name, shape=RECORDS[name], outputs=10)) == size
    assert count_parameters(build_model("logistic", shape=(13,), outputs=2)) == 28
    assert count_parameters(build_model("logistic", shape=(13,), outputs=2, bias=False)) == 26
    assert count_parameters(build_model("mlp", shape=(13,), outputs=2)) == 258
    assert build_model("mlp", shape=(13,), outputs=1)(torch.randn(2, 13)).shape == (2, 1)


def test_the_papers_dropout_is_there():
    model = build_model("resnet18", shape=(3, 32, 32), outputs=10)
    inputs = records("resnet18")
    assert not torch.allclose(model(inputs), model(inputs))
    assert torch.allclose(model.eval()(inputs), model(inputs))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("resnet", {"shape": (3, 32, 32)}, "did you mean resnet34|did you mean resnet18"),
        ("cnn", {"shape": (13,)}, "takes images of at least 16 x 16"),
        ("resnet18", {"shape": (13,)}, "takes images"),
        ("sequence", {"shape": (3, 8, 8)}, "takes rows of tokens"),
        ("mlp", {"shape": (13,), "width": 3}, "has no setting width; there are hidden"),
        ("resnet18", {"shape": (3, 32, 32), "dropout": 1.0}, "dropout = 1"),
        ("mlp", {"shape": (13,), "hidden": 0}, "hidden = 0"),
        ("mlp", {"shape": 13}, "must be a tuple"),
        ("mlp", {"shape": (13,), "outputs": 0}, "outputs = 0"),
    ],
)
def test_what_is_refused(name, settings, message):
    with pytest.raises(InputError, match=message):
        build_model(name, **{"outputs": 2, **settings})
