"""Algorithm 1 against an implementation of its own, in plain NumPy, noise included."""

import math

import numpy as np
import pytest
import torch

from pacdp.clipping import SimulatedNoise
from pacdp.clipping.numerics import shrink_bound
from pacdp.data import load_dataset, partition_records
from pacdp.federation import (
    Aggregation,
    Levels,
    LocalModel,
    Optimiser,
    Privacy,
    Training,
    simulate,
)
from pacdp.methods import build_method
from pacdp.privacy import account
from tests.plans import plan_for

SEED = 11
ROUNDS, EPOCHS, BATCH, RATE = 6, 2, 16, 0.05
CURVE = {"family": "quadratic", "coefficients": [-0.01, 0.3, 0.2], "domain": [0.01, 10.0]}


def softmax(scores):
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True)


def released(sums, noise, sensitivity, sigma):
    """Sum and noise, each rounded to the grid: the draws are the library's, the rest is not."""
    size = sum(value.size for value in sums)
    grid = 2.0 ** math.floor(math.log2(sensitivity * 2**-10 / math.sqrt(size)))
    drawn = np.split(noise.normals(size).numpy().astype(np.float64), [sums[0].size])
    return [
        (np.round(value / grid) + np.round(part.reshape(value.shape) * sigma / grid)) * grid
        for value, part in zip(sums, drawn, strict=True)
    ]


def algorithm_1(records, epsilons, noise_multipliers, sensitivity, weight, bias, asked):
    """The paper's Algorithm 1 with E local epochs, for logistic regression."""
    sizes = np.array([len(labels) for _, labels in records])
    for t in range(ROUNDS):
        stable = math.floor(0.6 * ROUNDS)
        along = (t - stable) / (ROUNDS - stable)
        decay = 1.0 if t < stable else 0.1 + 0.9 * (1 + math.cos(math.pi * along)) / 2
        answers = []
        for client in asked[t]:
            features, labels = records[client]
            a, b, c = CURVE["coefficients"]
            epsilon = epsilons[client]
            bound = (a * epsilon**2 + b * epsilon + c) * decay
            w, v = weight.copy(), bias.copy()
            number = math.ceil(len(labels) / BATCH)
            noise = SimulatedNoise(seed=SEED, client=client, round=t)
            divisor = len(labels) / number
            for epoch in range(EPOCHS):
                order = np.random.default_rng([SEED, client, t, epoch]).permutation(len(labels))
                for batch in np.array_split(order, number):
                    x, y = features[batch], labels[batch]
                    wrong = softmax(x @ w.T + v) - np.eye(len(v))[y]
                    total_w, total_v = np.zeros_like(w), np.zeros_like(v)
                    for record, error in zip(x, wrong, strict=True):
                        g_w, g_v = np.outer(error, record), error
                        norm = math.sqrt((g_w**2).sum() + (g_v**2).sum())
                        # The engine stays half a per cent below C, to leave room for rounding.
                        factor = min(1.0, shrink_bound(bound, 1) / norm)
                        total_w += factor * g_w
                        total_v += factor * g_v
                    sigma = noise_multipliers[client] * bound
                    sums = [total_w, total_v]
                    noised_w, noised_v = released(sums, noise, sensitivity * bound, sigma)
                    w -= RATE * noised_w / divisor
                    v -= RATE * noised_v / divisor
            answers.append((w, v))
        shares = sizes[list(asked[t])] / sizes[list(asked[t])].sum()
        weight = sum(share * w for share, (w, _) in zip(shares, answers, strict=True))
        bias = sum(share * v for share, (_, v) in zip(shares, answers, strict=True))
    return weight, bias


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_algorithm_1_to_a_few_grid_steps(adjacency):
    data = load_dataset("heart")
    hospitals = partition_records(data, "natural")
    plan = plan_for(
        data,
        hospitals,
        method=build_method("pac-dp", {"curve": CURVE}),
        training=Training(
            rounds=ROUNDS,
            clients_per_round=2,
            sampling="uniform",
            cap="rounds",
            local_epochs=EPOCHS,
            batch=BATCH,
            optimiser=Optimiser(lr=RATE),
        ),
        privacy=Privacy(
            epsilon=Levels(levels=[0.5, 1.0, 5.0], shares=[0.6, 0.3, 0.1]), adjacency=adjacency
        ),
        server=Aggregation(weights="size"),
        seed=SEED,
    )
    first = LocalModel(plan).state()
    weight, bias = (first[name].numpy().astype(np.float64) for name in ("1.weight", "1.bias"))
    records = [(r.features.astype(np.float64), r.labels) for r in hospitals.client_records(data)]
    asked = [plan.participants(t) for t in range(ROUNDS)]
    multipliers = [client.noise_multiplier for client in plan.clients]
    epsilons = [client.epsilon for client in plan.clients]
    sensitivity = plan.adjacency.sensitivity
    expected = algorithm_1(records, epsilons, multipliers, sensitivity, weight, bias, asked)
    result = simulate(plan, data, hospitals)
    for name, value in zip(("1.weight", "1.bias"), expected, strict=True):
        found = result.model[name].numpy()
        # A sum that falls between two grid points may be rounded to either, by 1e-5 at most here.
        assert np.abs(found - value).max() <= 1e-5 * max(1.0, np.abs(value).max())
    # And it moved: the comparison is not of two untouched models.
    assert np.abs(result.model["1.weight"].numpy() - first["1.weight"].numpy()).max() > 0.01
    for number, client in enumerate(result.clients()):
        (each,) = plan.planned_releases(number)
        if client.releases:
            certified = account(each.times(client.releases)).epsilon
            assert client.epsilon_spent == pytest.approx(certified, rel=1e-12)


def test_the_same_seed_gives_the_same_model_and_another_another():
    data = load_dataset("digits")
    split = partition_records(data, "dirichlet", clients=5)

    def train(seed):
        plan = plan_for(
            data,
            split,
            training=Training(rounds=2, local_epochs=1, batch=32),
            privacy=Privacy(epsilon=8.0),
            seed=seed,
        )
        return simulate(plan, data, split).model

    one, same, other = train(1), train(1), train(2)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["1.weight"], other["1.weight"])
