"""A person with several records is clipped as one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pacdp.clipping import ClippedGradient, CrossEntropy
from pacdp.clipping.numerics import shrink_bound
from pacdp.errors import BudgetExceededError, InputError
from pacdp.models import build_model
from pacdp.privacy import Adjacency, Filter, Guarantee, Release, SQLiteLedger, account

from .models import assert_same

LOSS = CrossEntropy()


def reference(model, inputs, targets, units, bound):
    """Each unit's gradient by ordinary autograd, clipped, and summed."""
    bound = shrink_bound(bound, 1)
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    for unit in units.unique():
        mine = units == unit
        loss = LOSS(model(inputs[mine]), targets[mine]).sum()
        found = torch.autograd.grad(loss, list(parameters.values()))
        norm = torch.sqrt(sum(g.double().square().sum() for g in found))
        for name, gradient in zip(parameters, found, strict=True):
            total[name] += gradient.double() * min(1.0, bound / float(norm))
    return total


MODELS = {
    "logistic": ((5,), {}),
    "mlp": ((5,), {}),
    "cnn": ((1, 16, 16), {}),
    "resnet18": ((3, 8, 8), {"dropout": 0.0}),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bound", [0.05, 100.0])
@pytest.mark.parametrize("microbatch", [None, 2])
def test_units_against_autograd(name, bound, microbatch):
    torch.manual_seed(0)
    shape, settings = MODELS[name]
    model = build_model(name, shape=shape, outputs=3, **settings)
    units = torch.tensor([7, 3, 7, 7, -1, 3, 20, 20, 5])
    inputs, targets = torch.randn(9, *shape), torch.arange(9) % 3
    engine = ClippedGradient(
        model, LOSS, adjacency="zero-out", unit="patient", microbatch=microbatch
    )
    total = engine(inputs, targets, clipping_bound=bound, units=units)
    assert_same(total.values, reference(model, inputs, targets, units, bound))
    assert (total.unit, total.sensitivity) == ("patient", bound)


@given(seed=st.integers(0, 10_000), size=st.integers(1, 12), bound=st.floats(1e-3, 10))
def test_one_unit_moves_the_sum_by_at_most_its_sensitivity(seed, size, bound):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    inputs, targets = 100 * torch.randn(size, 4), torch.randint(0, 2, (size,))
    units = torch.randint(0, 3, (size,))
    engine = ClippedGradient(model, LOSS, adjacency="zero-out", unit="patient")
    kept = units != units[0]
    whole = engine(inputs, targets, clipping_bound=bound, units=units)
    without = engine(inputs[kept], targets[kept], clipping_bound=bound, units=units[kept])
    moved = sum((whole.values[n] - without.values[n]).double().square().sum() for n in whole.values)
    assert float(moved) ** 0.5 <= whole.sensitivity * (1 + 1e-5)


def test_a_unit_with_one_bad_record_contributes_nothing():
    model = nn.Linear(2, 2)
    engine = ClippedGradient(model, LOSS, adjacency="zero-out", unit="patient")
    inputs = torch.randn(6, 2)
    targets, units = torch.zeros(6, dtype=torch.long), torch.tensor([0, 0, 1, 1, 2, 2])
    inputs[2] = float("nan")
    total = engine(inputs, targets, clipping_bound=1.0, units=units)
    kept = units != 1
    assert_same(total.values, reference(model, inputs[kept], targets[kept], units[kept], 1.0))


def test_sums_and_units_must_agree():
    inputs, targets = torch.randn(4, 2), torch.zeros(4, dtype=torch.long)
    by_record = ClippedGradient(nn.Linear(2, 2), LOSS, adjacency="zero-out")
    by_patient = ClippedGradient(nn.Linear(2, 2), LOSS, adjacency="zero-out", unit="patient")
    with pytest.raises(InputError, match="units: were given, but gradients are clipped per record"):
        by_record(inputs, targets, clipping_bound=1.0, units=torch.arange(4))
    with pytest.raises(InputError, match="units: are missing, but gradients are clipped"):
        by_patient(inputs, targets, clipping_bound=1.0)
    for bad in (torch.arange(3), torch.arange(4.0), torch.zeros(4, 1, dtype=torch.long)):
        with pytest.raises(InputError, match="must be one whole number for each example"):
            by_patient(inputs, targets, clipping_bound=1.0, units=bad)


def test_a_budget_for_patients_pays_for_patients_only(tmp_path):
    budget = Guarantee(epsilon=1.0, adjacency=Adjacency.ZERO_OUT, unit="patient")
    ledger = SQLiteLedger.create(tmp_path / "a.ledger", client="a", budget=budget)
    record = Release.clipped_sum(noise_multiplier=10, adjacency=Adjacency.ZERO_OUT)
    patient = Release.clipped_sum(noise_multiplier=10, adjacency=Adjacency.ZERO_OUT, unit="patient")
    with pytest.raises(InputError, match="covers a record, but the budget is for a patient"):
        ledger.reserve(record, run="first")
    ledger.reserve(patient, run="first")
    again = SQLiteLedger(tmp_path / "a.ledger")
    assert again.filter.budget == budget
    assert again.filter.realised.unit == "patient"
    assert "zero-out of a patient" in str(again.filter.realised)
    with pytest.raises(InputError, match="are of units patient, record"):
        account([record, patient])
    with pytest.raises(BudgetExceededError):
        Filter(budget).spend(patient.times(1000))
