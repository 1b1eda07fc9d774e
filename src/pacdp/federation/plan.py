"""The plan: everything public about a training, decided before any private record is read.

A run is a plan plus data plus a seed. The plan holds what the server asks for and what each client
will do, release and add; it can be printed, saved, reloaded and checked by a client that trusts
nobody. Nothing in it depends on a record: client sizes are public.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PositiveInt, ValidationError, model_validator

from pacdp.checks import positive_number, word
from pacdp.errors import DataError, InputError
from pacdp.federation.budgets import deal_budgets
from pacdp.federation.configuration import Aggregation, HotStart, Model, Privacy, Training
from pacdp.federation.participation import participants, participation_cap
from pacdp.methods import Method, method
from pacdp.privacy import Adjacency, Guarantee, Release, Scope, account
from pacdp.settings import Settings, explain

# A budget must be more than nothing, also where one release costs nothing that can be told.
SMALLEST_EPSILON = 1e-12


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
    seed: int = Field(ge=0, lt=2**63)
    unit: str
    again: str = ""
    """Tells a second run of the same plan from the first, in the clients' ledgers."""
    clients: tuple[ClientPlan, ...]

    @model_validator(mode="after")
    def _honest(self) -> Self:
        """A plan has noise for every client or a method without a guarantee, never one of each."""
        noisy = [task.noise_multiplier is not None for task in self.clients]
        if any(noisy) != self.made_method.private or all(noisy) != self.made_method.private:
            raise ValueError(f"method {self.method}: its clients' noise does not fit it")
        return self

    @property
    def rounds(self) -> int:
        """T."""
        return self.training.rounds

    @property
    def per_round(self) -> int:
        """How many clients are asked in a round."""
        return self.training.asked(len(self.clients))

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets are neighbours."""
        return Adjacency.parse(self.privacy.adjacency)

    @cached_property
    def run(self) -> str:
        """The name under which the run's releases are booked: another plan has another name."""
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return f"{self.data}-{self.method}-seed-{self.seed}-{digest[:12]}"

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
            more = 0.0 if planned is None else max(planned.epsilon * (1 + 1e-9), SMALLEST_EPSILON)
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
            raise DataError(f"{path}: is no plan ({explain(error, cls)})") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: is no plan ({error.reason})") from error


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
    again: str = "",
) -> Plan:
    """Decide everything, from public things alone.

    ``sizes`` are the clients' numbers of records; ``units`` those of persons (or whatever ``unit``
    says), where several records belong to one. ``again`` is any word that tells a second run of the
    same plan from the first, where both draw on one ledger.

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
    if (units is None) != (unit == "record"):
        raise InputError(f"unit = {unit!r}: the number of units must be given just where there are")
    if not 0 <= seed < 2**63:
        raise InputError(f"seed = {seed}: must be a whole number from 0 to 2^63 - 1")
    counted = sizes if units is None else units
    per_round = training.asked(len(sizes))
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
            for number in range(training.rounds):
                bound = method.bound(epsilon, round=number, rounds=training.rounds)
                positive_number(f"clipping bound of {name}", bound)
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
        again=again,
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
        raise InputError(
            f"client {name}: has {records} records of {units} units, must have at least one of each"
        )
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
