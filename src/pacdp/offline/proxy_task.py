"""What a cell of the grid is trained under: the plan of the run it is for, on public records."""

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

# Partitions that say more than how many records each client has.
_SKEWED = ("dirichlet", "shards", "near-global")


@dataclass(frozen=True, eq=False, kw_only=True)
class ProxyTask:
    """The public side of a training: everything but the private records.

    ``sizes`` are those of the run's own clients. The proxy's records are dealt out in the same
    numbers, some of them more than once where it has fewer: what noise does to a mean depends on
    how many records are in it.
    """

    proxy: Proxy
    sizes: Mapping[str, int]
    recipe: Recipe
    schedule: Schedule = field(default_factory=Schedule)
    unit: str = "record"
    """What ``sizes`` count, and what a budget protects."""
    initial: Mapping[str, Tensor] | None = None
    """A first model from other public records; by default it is random."""
    partition: str = "natural"
    settings: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0
    """Classes of the proxy for one of the task."""

    def adapt_training(self, training: Training) -> Training:
        """The training as it is on the proxy, where it moves each class as far as in the task.

        A class has as many records there, which are a larger part of all. Adam takes no notice.
        """
        optimiser = training.optimiser
        if self.share == 1 or optimiser.name == "adam":
            return training
        shorter = optimiser.model_copy(update={"lr": optimiser.lr * self.share})
        return training.model_copy(update={"optimiser": shorter})

    def plan(self, epsilon: float, bound: float, seed: int) -> Plan:
        """The same plan with one budget and one bound for all."""
        low, high = epsilon / 2, epsilon * 2
        constant = Curve(family="power", coefficients=(bound, 0.0), domain=(low, high))
        recipe = self.recipe.model_copy(
            update={
                "training": self.adapt_training(self.recipe.training),
                "privacy": self.recipe.privacy.model_copy(update={"epsilon": epsilon}),
                "hot_start": None,
            }
        )
        chosen = PacDp(curve=constant, schedule=self.schedule)
        return make_plan(recipe, chosen, self.population(seed), seed)

    def population(self, seed: int) -> Population:
        """The clients among whom the proxy's records are dealt out. A unit is one record here."""
        data, split = self.records(seed)
        return Population(sizes=split.named_sizes, shape=data.shape, task=data.task, data=data.name)

    def records(self, seed: int) -> tuple[Dataset, Partition]:
        """The proxy's records, dealt out among as many clients as the run has."""
        return _dealt(self, seed)

    def score(self, epsilon: float, bound: float, seed: int) -> float:
        """How good one training is on proxy records that it did not see: higher is better."""
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
        """All that a curve made under this setting depends on, beside the proxy."""
        some = self.plan(1.0, 1.0, 0)
        return {
            **some.terms,
            "training": self.recipe.training.model_dump(mode="json"),
            "schedule": self.schedule.model_dump(mode="json"),
            "sizes": sorted(self.sizes.values()),
            "partition": {"kind": self.partition, **self.settings},
        }

    @property
    def digest(self) -> str:
        """Tells this setting from any other."""
        terms = self.terms
        if self.recipe.representation is None:
            # As before there were any: what was computed then is still of use.
            del terms["representation"]
        content: dict[str, Any] = {"terms": terms, "proxy": self.proxy.data.train.digest}
        if self.share != 1:
            content["share"] = self.share
        if self.initial is not None:
            content["initial"] = [value.tolist() for value in self.initial.values()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=32)
def _dealt(proxy_task: ProxyTask, seed: int) -> tuple[Dataset, Partition]:
    data = proxy_task.proxy.data
    sizes = list(proxy_task.sizes.values())
    random = np.random.default_rng([seed, 3])
    order = _repeated(len(data.train), sum(sizes), random)
    train = replace(data.train.take(order), clients=None)
    dealt = replace(data, train=train, test=replace(data.test, clients=None), clients=())
    names = tuple(proxy_task.sizes)
    if proxy_task.partition in _SKEWED:
        split = partition_records(
            dealt, proxy_task.partition, clients=len(names), seed=seed, **proxy_task.settings
        )
        return dealt, replace(split, clients=names)
    ends = np.cumsum(sizes)
    return dealt, Partition(
        data=data.name,
        kind="iid",
        settings={},
        seed=seed,
        clients=names,
        indices=tuple(np.split(np.arange(ends[-1]), ends[:-1])),
        digest=train.digest,
    )


def _repeated(have: int, want: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Some of the records in a random order, each as often as any other to within one."""
    rounds = [random.permutation(have) for _ in range(-(-want // have))]
    return np.concatenate(rounds)[:want]
