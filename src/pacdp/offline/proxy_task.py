"""The proxy task: the plan of a private training, simulated on public records."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pacdp.curve import Curve
from pacdp.data import Dataset, Partition, partition_records
from pacdp.data.proxy import Proxy
from pacdp.federation import Plan, Population, Recipe, Training, make_plan, simulate
from pacdp.methods import PacDp
from pacdp.schedule import Schedule

# Partitions that depend on labels, beyond the number of records of each client.
_SKEWED = ("dirichlet", "shards", "near-global")


@dataclass(frozen=True, eq=False, kw_only=True)
class ProxyTask:
    """A training on public proxy records, with everything else as in the private training.

    ``sizes`` are those of the private clients. The proxy's records are assigned in the same
    numbers, some of them repeatedly if there are fewer, because the effect of noise on a mean
    depends on its number of records.
    """

    proxy: Proxy
    sizes: Mapping[str, int]
    recipe: Recipe
    schedule: Schedule = field(default_factory=Schedule)
    unit: str = "record"
    """What ``sizes`` count, and what a budget protects."""
    initial: Mapping[str, Tensor] | None = None
    """A first model from other public records; random by default."""
    partition: str = "natural"
    settings: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0
    """The number of proxy classes per class of the private task."""

    def adapt_training(self, training: Training) -> Training:
        """Scale the learning rate so that each class moves as far as in the private task.

        A class has as many records on the proxy, but they are a larger part of all records. Adam is
        invariant to the scale.
        """
        optimiser = training.optimiser
        if self.share == 1 or optimiser.name == "adam":
            return training
        scaled = optimiser.model_copy(update={"lr": optimiser.lr * self.share})
        return training.model_copy(update={"optimiser": scaled})

    def plan(self, epsilon: float, bound: float, seed: int) -> Plan:
        """Return the plan with one budget and one bound for all clients."""
        levels = self.recipe.privacy.records
        # With budget levels the curve is evaluated at the largest, which epsilon caps.
        low, high = (min(epsilon, *levels.levels[-1:]) if levels else epsilon) / 2, epsilon * 2
        constant = Curve(family="power", coefficients=(bound, 0.0), domain=(low, high))
        recipe = self.recipe.model_copy(
            update={
                "training": self.adapt_training(self.recipe.training),
                "privacy": self.recipe.privacy.model_copy(update={"epsilon": epsilon}),
                "hot_start": None,
            }
        )
        method = PacDp(curve=constant, schedule=self.schedule)
        return make_plan(recipe, method, self.population(seed), seed)

    def population(self, seed: int) -> Population:
        """Return the clients of the proxy task. Each unit is one record here."""
        data, split = self.records(seed)
        sizes = split.sizes_by_client
        return Population(sizes=sizes, shape=data.shape, task=data.task, data=data.name)

    def records(self, seed: int) -> tuple[Dataset, Partition]:
        """Return the proxy's records, assigned to as many clients as the private training has."""
        return _assign_records(self, seed)

    def score(self, epsilon: float, bound: float, seed: int) -> float:
        """Train once and return the score on held-out proxy records; higher is better."""
        data, split = self.records(seed)
        result = simulate(
            self.plan(epsilon, bound, seed),
            *(data, split),
            initial=None if self.initial is None else dict(self.initial),
            evaluate_every=self.recipe.training.rounds,
        )
        return data.task.score(result.metrics)

    @property
    def terms(self) -> dict[str, Any]:
        """Everything that a curve for this task depends on, except the proxy."""
        return {
            **self.plan(1.0, 1.0, 0).terms,
            "training": self.recipe.training.model_dump(mode="json"),
            "schedule": self.schedule.model_dump(mode="json"),
            "sizes": sorted(self.sizes.values()),
            "partition": {"kind": self.partition, **self.settings},
        }

    @property
    def digest(self) -> str:
        """A digest that distinguishes this task from any other."""
        terms = self.terms
        if self.recipe.representation is None:
            # As before there were representations, so that older scores remain valid.
            del terms["representation"]
        content: dict[str, Any] = {"terms": terms, "proxy": self.proxy.data.train.digest}
        if self.share != 1:
            content["share"] = self.share
        if self.initial is not None:
            content["initial"] = [value.tolist() for value in self.initial.values()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# Every plan of a grid needs the records. The cache is bounded for all tasks together, because each
# entry is a copy of the proxy.
@lru_cache(maxsize=32)
def _assign_records(proxy_task: ProxyTask, seed: int) -> tuple[Dataset, Partition]:
    data = proxy_task.proxy.data
    sizes = list(proxy_task.sizes.values())
    random = np.random.default_rng([seed, 3])
    order = _draw_repeatedly(len(data.train), sum(sizes), random)
    # Budgets of public records protect nobody.
    train = replace(data.train.take(order), clients=None, budgets=None)
    assigned = replace(data, train=train, test=replace(data.test, clients=None), clients=())
    names = tuple(proxy_task.sizes)
    if proxy_task.partition in _SKEWED:
        split = partition_records(
            assigned, proxy_task.partition, clients=len(names), seed=seed, **proxy_task.settings
        )
        return assigned, replace(split, clients=names)
    ends = np.cumsum(sizes)
    return assigned, Partition(
        data=data.name,
        kind="iid",
        settings={},
        seed=seed,
        clients=names,
        indices=tuple(np.split(np.arange(ends[-1]), ends[:-1])),
        digest=train.digest,
    )


def _draw_repeatedly(available: int, wanted: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Draw records in random order, each as often as any other up to one."""
    orders = [random.permutation(available) for _ in range(-(-wanted // available))]
    return np.concatenate(orders)[:wanted]
