"""The plan: everything public about a training, decided before any private record is read.

A run is a plan plus data plus a seed. The plan holds what the server asks for and what each client
will do, release and add; it can be printed, saved, reloaded and checked by a client that trusts
nobody. Nothing in it depends on a record: client sizes are public.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import PositiveInt, ValidationError

from pacdp.checks import word
from pacdp.errors import DataError, InputError
from pacdp.federation.budgets import deal_budgets
from pacdp.federation.configuration import Aggregation, HotStart, Model, Privacy, Training
from pacdp.federation.participation import participants, participation_cap
from pacdp.methods import Method, method
from pacdp.privacy import Adjacency, Guarantee, Release, Scope, account
from pacdp.settings import Settings


class ClientPlan(Settings):
    """One client's part of the plan, all of it public."""

    name: str
    records: PositiveInt
    units: PositiveInt
    """What is clipped as one: records, or those they belong to."""
    budget: float | None
    """The ε it asked for; None where a method has no guarantee."""
    epsilon: float
    """The ε its noise is calibrated to."""
    participations: PositiveInt
    """How often it answers at most."""
    batches: PositiveInt
    """Batches in one pass over its records."""
    steps: PositiveInt
    """Local steps in a participation."""
    divisor: float
    """The public number by which a sum is divided: the units of a batch."""
    noise_multiplier: float | None
    """σ/C."""

    @property
    def passes(self) -> int:
        """How often a participation can touch one record."""
        return math.ceil(self.steps / self.batches)

    @property
    def releases(self) -> int:
        """K_i: releases per record over the whole training."""
        return self.passes * self.participations


class Plan(Settings):
    """A whole training before it starts."""

    data: str
    model: Model
    shape: tuple[int, ...]
    classes: int
    training: Training
    server: Aggregation
    privacy: Privacy
    hot_start: HotStart | None = None
    """How public data train the first model; None where it is random."""
    method: str
    settings: dict[str, Any]
    """The method's."""
    seed: int
    unit: str
    clients: tuple[ClientPlan, ...]

    @property
    def rounds(self) -> int:
        """T."""
        return self.training.rounds

    @property
    def per_round(self) -> int:
        """How many clients are asked in a round."""
        asked = self.training.clients_per_round
        return len(self.clients) if asked == "all" else asked

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets are neighbours."""
        return Adjacency.parse(self.privacy.adjacency)

    @property
    def run(self) -> str:
        """The name under which the run's releases are booked."""
        return f"{self.data}-{self.method}-seed-{self.seed}"

    @property
    def label(self) -> str:
        """A mark on the ledger's rows where a budget is not what it seems."""
        return "" if self.privacy.scope == "total" else self.privacy.scope

    @cached_property
    def made_method(self) -> Method:
        """The method with its settings."""
        return method(self.method, self.settings)

    def participants(self, round: int) -> tuple[int, ...]:  # noqa: A002
        """The clients that are asked in a round."""
        drawn = participants(
            sampling=self.training.sampling,
            clients=len(self.clients),
            per_round=self.per_round,
            rounds=self.rounds,
            seed=self.seed,
        )
        return drawn[round]

    def release(self, client: int) -> Release | None:
        """All that a client will release, record by record, or None without a guarantee."""
        task = self.clients[client]
        if task.noise_multiplier is None:
            return None
        return Release.clipped_sum(
            noise_multiplier=task.noise_multiplier,
            adjacency=self.adjacency,
            count=task.releases,
            unit=self.unit,
        )

    def planned(self, client: int) -> Guarantee | None:
        """What the client's releases certify, if it answers as often as planned."""
        release = self.release(client)
        return None if release is None else account(release, delta=self.privacy.delta)

    def budget(self, client: int) -> Guarantee | None:
        """What the client's book may be charged.

        With a total scope, what it asked for. In the paper's per-release reading that is only the
        cost of one release; the book then holds what the whole run really costs.
        """
        asked = self.clients[client].budget
        if asked is None or self.privacy.scope != "total":
            planned = self.planned(client)
            # Inverted and inverted again, on the safe side both times, it must still fit.
            more = 0.0 if planned is None else planned.epsilon * (1 + 1e-9)
            return None if planned is None else replace(planned, epsilon=more)
        return Guarantee(
            epsilon=asked, delta=self.privacy.delta, adjacency=self.adjacency, unit=self.unit
        )

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Read what :meth:`save` wrote."""
        try:
            return cls.model_validate_json(path.read_text())
        except ValidationError as error:
            raise DataError(f"{path}: is no plan ({error.error_count()} faults)") from error


def make_plan(
    *,
    sizes: dict[str, int],
    shape: Sequence[int],
    classes: int,
    method: Method,
    training: Training,
    privacy: Privacy | None = None,
    server: Aggregation | None = None,
    model: Model | None = None,
    hot_start: HotStart | None = None,
    units: dict[str, int] | None = None,
    unit: str = "record",
    data: str = "data",
    seed: int = 0,
) -> Plan:
    """Decide everything, from public things alone.

    ``sizes`` are the clients' numbers of records; ``units`` those of persons (or whatever ``unit``
    says), where several records belong to one.

    >>> from pacdp.methods import method
    >>> plan = make_plan(
    ...     sizes={"north": 200, "south": 50}, shape=(13,), classes=2, method=method("fixed"),
    ...     training=Training(rounds=10, local_epochs=5, batch=16),
    ...     privacy=Privacy(epsilon=(0.5, 0.1)),
    ... )
    >>> [(c.batches, c.releases, round(c.noise_multiplier, 2)) for c in plan.clients]
    [(13, 50, 49.72), (4, 50, 217.43)]
    """
    privacy, server = privacy or Privacy(), server or Aggregation()
    if not sizes:
        raise InputError("clients: there are none, must be at least one")
    word("unit", unit)
    counted = sizes if units is None else units
    asked = training.clients_per_round
    per_round = len(sizes) if asked == "all" else asked
    if per_round > len(sizes):
        raise InputError(f"clients_per_round = {per_round}: must be at most {len(sizes)}")
    unlimited = training.cap == "rounds" or per_round == len(sizes)
    cap = participation_cap(
        sampling=training.sampling,
        clients=len(sizes),
        per_round=per_round,
        rounds=training.rounds,
        quantile=None if unlimited else float(training.cap),
    )
    budgets = deal_budgets(privacy.epsilon, len(sizes), seed)
    used = method.budgets(budgets)
    clients = []
    for (name, records), asked_for, epsilon in zip(sizes.items(), budgets, used, strict=True):
        task = _client(name, records, counted[name], asked_for, epsilon, cap, training)
        if method.private:
            release = method.release(
                epsilon=epsilon,
                delta=privacy.delta,
                releases=task.releases,
                adjacency=Adjacency.parse(privacy.adjacency),
                accountant=privacy.accountant,
                scope=Scope.parse(privacy.scope),
                unit=unit,
            )
            task = task.model_copy(update={"noise_multiplier": release.noise_multiplier})
        else:
            task = task.model_copy(update={"budget": None})
        clients.append(task)
    return Plan(
        data=data,
        model=model or Model(),
        shape=tuple(shape),
        classes=classes,
        training=training,
        server=server,
        privacy=privacy,
        hot_start=hot_start,
        method=method.name,
        settings=method.model_dump(mode="json"),
        seed=seed,
        unit=unit,
        clients=tuple(clients),
    )


def _client(
    name: str,
    records: int,
    units: int,
    budget: float,
    epsilon: float,
    cap: int,
    training: Training,
) -> ClientPlan:
    if not 1 <= units <= records:
        raise InputError(f"client {name}: has {records} records, must have at least one")
    batches = 1 if training.batch == "full" else math.ceil(units / training.batch)
    steps = training.local_steps or batches * (training.local_epochs or 1)
    return ClientPlan(
        name=name,
        records=records,
        units=units,
        budget=budget,
        epsilon=epsilon,
        participations=cap,
        batches=batches,
        steps=steps,
        divisor=units / batches,
        noise_multiplier=None,
    )
