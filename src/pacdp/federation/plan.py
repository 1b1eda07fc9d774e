"""The plan: everything public about a training, decided before any private record is read.

A run is a plan plus data plus a seed. The plan holds what the server asks for and what each client
will do, release and add; it can be printed, saved, reloaded and checked by a client that trusts
nobody. Nothing in it depends on a record: client sizes are public.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    PositiveInt,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from pacdp.arithmetic import ARITHMETIC, refuse_other_arithmetic
from pacdp.clipping.numerics import check_clipping_bound
from pacdp.config import Settings, explain_validation_error
from pacdp.errors import DataError, InputError
from pacdp.federation.budgets import assign_budgets
from pacdp.federation.client_sampling import (
    participants,
    participation_cap,
    participations_ahead,
)
from pacdp.federation.configuration import Privacy, Recipe, Training
from pacdp.federation.population import Population
from pacdp.methods import CalibrationRequest, Method, ReleaseSpec, build_method, name_of
from pacdp.privacy import Adjacency, Guarantee, Ledger, Release, Scope, account, total_mu
from pacdp.tasks import Task, load_task

# A budget must be more than nothing, also where one release costs nothing that can be told.
SMALLEST_EPSILON = 1e-12


_ADJACENCY = {adjacency.value: adjacency for adjacency in Adjacency}


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
    charges: tuple[ReleaseSpec, ...]
    """What a participation releases; nothing where a method adds no noise."""

    @property
    def passes(self) -> int:
        """How often a participation goes over its records."""
        return math.ceil(self.steps / self.batches)

    @property
    def each(self) -> int:
        """Releases per record in a participation."""
        return sum(charge.each for charge in self.charges)

    @property
    def releases(self) -> int:
        """K_i: releases per record over the whole training."""
        return self.each * self.participations

    @property
    def noise_multiplier(self) -> float | None:
        """σ/C of the model's own releases; None without noise."""
        return self.charges[0].noise_multiplier if self.charges else None


class Plan(Recipe):
    """A whole training before it starts."""

    arithmetic: int
    """The version of clipping, rounding and noise; another one gives the run another name."""
    data: str
    shape: tuple[int, ...]
    task: Annotated[Task, PlainValidator(load_task), PlainSerializer(lambda task: task.to_json())]
    provenance: dict[str, str] = Field({})
    """What the features were made from."""
    tuning: dict[str, Any] | None = None
    """What was chosen on public data, why, and what it lets expect; None where nothing was."""
    method: str
    settings: dict[str, Any]
    """The method's."""
    seed: int = Field(ge=0, lt=2**63)
    unit: str
    again: str = ""
    """Tells a second run of the same plan from the first, in the clients' ledgers."""
    clients: tuple[ClientPlan, ...]

    @model_validator(mode="before")
    @classmethod
    def _read_classes(cls, given: Any) -> Any:
        if isinstance(given, dict) and "task" not in given and "classes" in given:
            return {"task" if key == "classes" else key: value for key, value in given.items()}
        return given

    @model_serializer(mode="wrap")
    def _write_classes(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Runs are named after a digest of this JSON, so the order of the keys must not change, and
        # a number of classes keeps its own key.
        content = serialize(self)
        first = ("arithmetic", "data", "model", "shape", "task", *Recipe.model_fields)
        return {
            "classes" if key == "task" and isinstance(content[key], int) else key: content[key]
            for key in (*first, *content)
            if key in content
        }

    @field_validator("arithmetic")
    @classmethod
    def _current(cls, given: int) -> int:
        if given != ARITHMETIC:
            raise ValueError(f"is of another version of pacdp, must be {ARITHMETIC}")
        return given

    @model_validator(mode="after")
    def _honest(self) -> Self:
        """With a guarantee every client has noise, and without one nobody has a budget."""
        private = self.algorithm.private
        for client in self.clients:
            if (private and not client.charges) or (client.budget is None) == private:
                raise ValueError(
                    f"method {self.method}: noise or budget of {client.name} do not fit"
                )
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
        return _ADJACENCY[self.privacy.adjacency]

    @property
    def terms(self) -> dict[str, Any]:
        """What a curve must have been made for, to be of use here."""
        return {
            **self.privacy.model_dump(mode="json", exclude={"epsilon"}),
            "training": self.training.model_dump(mode="json"),
            "model": self.model.model_dump(mode="json", exclude={"seed"}),
            "server": self.server.model_dump(mode="json"),
            "representation": None
            if self.representation is None
            else self.representation.model_dump(mode="json", exclude={"seed"}),
        }

    @cached_property
    def run(self) -> str:
        """The name under which the run's releases are booked: another plan has another name."""
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return f"{self.data}-{self.method}-seed-{self.seed}-{digest[:12]}"

    @property
    def label(self) -> str:
        """A mark on the ledger's rows where a budget is not what it seems."""
        scope = "" if self.privacy.scope == "total" else self.privacy.scope
        return ", ".join(part for part in (self.algorithm.label, scope) if part)

    @cached_property
    def algorithm(self) -> Method:
        """The method with its settings."""
        return build_method(self.method, self.settings)

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

    def planned_releases(self, client: int, *, scale: float = 1.0) -> list[Release]:
        """What one participation of a client releases, record by record, its noise scaled."""
        return [
            _release(
                *(charge.noise_multiplier * scale, charge.sensitivity, self.adjacency),
                *(charge.each, charge.sampling_rate, self.unit),
            )
            for charge in self.clients[client].charges
        ]

    def noise_scale(self, client: int, round: int, ledger: Ledger) -> float:  # noqa: A002
        """The noise of a participation over that of even spending, after what its run has spent.

        Infinite where nothing is left to spend.
        """
        client_plan, spending = self.clients[client], self.privacy.spending
        if spending.policy == "even":
            return 1.0
        made = ledger.count_releases(self.run)
        whole = total_mu(self.planned_releases(client)) ** 2 * client_plan.participations
        share = spending.share(
            made=made.total() // client_plan.each,
            spent=total_mu(one.times(count) for one, count in made.items()) ** 2 / whole,
            planned=client_plan.participations,
            ahead=participations_ahead(
                **self.training.asking(len(self.clients)), rounds=self.rounds, start=round
            ),
        )
        return math.inf if not share else 1 / math.sqrt(client_plan.participations * share)

    def max_releases(self, client: int) -> int:
        """How many releases per record a client makes at most, whatever it is asked."""
        client_plan = self.clients[client]
        # What is re-planned may be asked for in any round, and shrinks.
        replanned = self.privacy.spending.policy == "replan"
        return client_plan.each * (self.rounds if replanned else client_plan.participations)

    def certify(self, releases: Sequence[Release]) -> Guarantee | None:
        """What some releases certify; None where a method has no guarantee."""
        if not self.algorithm.private:
            return None
        if not releases:
            return Guarantee(
                epsilon=0.0, delta=self.privacy.delta, adjacency=self.adjacency, unit=self.unit
            )
        return account(releases, delta=self.privacy.delta)

    def planned_guarantee(self, client: int, participations: int | None = None) -> Guarantee | None:
        """What a client's releases certify at even noise, if it answers so often or as planned.

        However a budget moves, the whole of it is the same.
        """
        times = self.clients[client].participations if participations is None else participations
        made = self.planned_releases(client)
        return self.certify([release.times(release.count * times) for release in made])

    def budget(self, client: int) -> Guarantee | None:
        """What the client's book may be charged.

        Usually what it asked for. Where a budget covers one release alone, or a formula claims
        more than it gives, the book holds what the whole run really costs, and says so.
        """
        asked = self.clients[client].budget
        if asked is None:
            return None
        if not self.label:
            return _budget(asked, self.privacy.delta, self.adjacency, self.unit)
        planned = self.planned_guarantee(client)
        assert planned is not None
        # Inverted and inverted again, on the safe side both times, it must still fit.
        return replace(
            planned,
            accountant="exact",
            epsilon=max(planned.epsilon * (1 + 1e-9), SMALLEST_EPSILON),
        )

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(
        cls, path: Path, *, advice: str = "pacdp plan EXPERIMENT --out FILE makes a new one"
    ) -> "Plan":
        """Read what :meth:`save` wrote; a plan of another version is refused.

        ``advice`` is the advice that is given with a refusal.
        """
        content = _content(path)
        refuse_other_arithmetic(path, content, mark="clients", advice=advice)
        return cls._validated(path, content)

    @classmethod
    def load_finished(cls, path: Path) -> "Plan":
        """The plan of a finished run of any version, read as one of this version.

        A trained model can be used as it is, and training it again would cost budget.
        """
        content = _content(path)
        if isinstance(content, dict):
            content = _rename_keys(content) | {"arithmetic": ARITHMETIC}
        return cls._validated(path, content)

    @classmethod
    def _validated(cls, path: Path, content: Any) -> "Plan":
        try:
            return cls.model_validate_json(json.dumps(content))
        except ValidationError as error:
            raise DataError(
                f"{path}: is no plan ({explain_validation_error(error, cls)})"
            ) from error


def _rename_keys(content: Any) -> Any:
    """Give the settings of version 0.1.0 their present names."""
    if not isinstance(content, dict):
        return content
    names = {"least": "min_factor", "stable": "hold_fraction", "any_plan": "allow_plan_mismatch"}
    return {names.get(key, key): _rename_keys(value) for key, value in content.items()}


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path}: is no plan ({error})") from error


def make_plan(
    recipe: Recipe,
    method: Method,
    population: Population,
    seed: int = 0,
    *,
    provenance: dict[str, str] | None = None,
    tuning: dict[str, Any] | None = None,
    again: str = "",
) -> Plan:
    """Decide everything about a training, from public information alone.

    ``again`` is any word that tells a second run of the same plan from the first, where both draw
    on one ledger.

    >>> from pacdp.methods import build_method
    >>> from pacdp.tasks import Classification
    >>> plan = make_plan(
    ...     Recipe(
    ...         training=Training(rounds=10, local_epochs=5, batch=16),
    ...         privacy=Privacy(epsilon=(0.5, 0.1)),
    ...     ),
    ...     build_method("fixed"),
    ...     Population(sizes={"north": 200, "south": 50}, shape=(13,), task=Classification(2)),
    ... )
    >>> [(c.batches, c.releases, round(c.noise_multiplier, 2)) for c in plan.clients]
    [(13, 50, 49.72), (4, 50, 217.43)]
    """
    training, privacy, sizes = recipe.training, recipe.privacy, population.sizes
    if not 0 <= seed < 2**63:
        raise InputError(f"seed = {seed}: must be a whole number from 0 to 2^63 - 1")
    counted = population.units or sizes
    per_round = training.asked(len(sizes))
    if per_round > len(sizes):
        raise InputError(f"clients_per_round = {per_round}: must be at most {len(sizes)}")
    cap = participation_cap(**training.asking(len(sizes)), rounds=training.rounds)
    budgets = assign_budgets(privacy.epsilon, len(sizes), seed)
    used = method.budgets(budgets)
    clients = []
    for (name, records), asked_for, epsilon in zip(sizes.items(), budgets, used, strict=True):
        client = _client(name, records, counted[name], asked_for, epsilon, cap, training)
        charges = method.specify_releases(
            CalibrationRequest(
                epsilon=epsilon,
                delta=privacy.delta,
                adjacency=Adjacency.parse(privacy.adjacency),
                accountant=privacy.accountant,
                scope=Scope.parse(privacy.scope),
                participations=cap,
                passes=client.passes,
                steps=client.steps,
                records=client.units,
                budgets=used,
            )
        )
        if privacy.spending.policy != "even" and method.private:
            _refuse_moving(privacy, method, charges)
        for number in range(training.rounds) if charges else ():
            bound = method.bound(epsilon, round=number, rounds=training.rounds)
            # Refused now, and not by a client that has paid.
            check_clipping_bound(f"clipping bound of {name}", bound)
        clients.append(
            client.model_copy(
                update={
                    "charges": tuple(charges),
                    "divisor": method.divisor(client.divisor, charges, client.units),
                    "budget": asked_for if method.private else None,
                }
            )
        )
    made = Plan(
        **vars(recipe.recipe),
        arithmetic=ARITHMETIC,
        data=population.data,
        shape=population.shape,
        task=population.task,
        provenance=provenance or {},
        tuning=tuning,
        method=name_of(method),
        settings=method.model_dump(mode="json"),
        seed=seed,
        unit=population.unit,
        again=again,
        clients=tuple(clients),
    )
    method.check_plan(made.terms)
    return made


def _refuse_moving(privacy: Privacy, method: Method, charges: Sequence[ReleaseSpec]) -> None:
    """Refuse budgets that move where only even spending is covered."""
    where = f"spending = {privacy.spending.policy}: must be even"
    if any(charge.sampling_rate < 1 for charge in charges):
        raise InputError(f"{where} for {method.name}, whose sampled releases are frozen as a whole")
    if privacy.scope != "total" or method.label:
        raise InputError(f"{where} where a budget does not cover the whole training")


@lru_cache(maxsize=4096)
def _budget(epsilon: float, delta: float, adjacency: Adjacency, unit: str) -> Guarantee:
    # One for all who asked for the same.
    return Guarantee(epsilon=epsilon, delta=delta, adjacency=adjacency, unit=unit)


@lru_cache(maxsize=4096)
def _release(
    noise_multiplier: float,
    sensitivity: float,
    adjacency: Adjacency,
    each: int,
    sampling_rate: float,
    unit: str,
) -> Release:
    # Each participation asks for the same few.
    return Release(
        noise_multiplier=noise_multiplier,
        sensitivity=sensitivity,
        adjacency=adjacency,
        count=each,
        sampling_rate=sampling_rate,
        unit=unit,
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
        charges=(),
    )
