"""The plan: everything public about a training, decided before any private record is read.

A run is a plan, data and a seed. The plan holds what the server asks for and what each client
computes, releases and adds as noise. It can be printed, saved, loaded and checked by a client that
trusts nobody. Nothing in it depends on a record: client sizes are public.
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
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from pacdp.arithmetic import ARITHMETIC, refuse_other_arithmetic
from pacdp.config import explain_validation_error
from pacdp.errors import DataError
from pacdp.federation.budgets import round_to_total
from pacdp.federation.client_sampling import ClientSampling
from pacdp.federation.configuration import Recipe
from pacdp.methods import ClientPlan, Method, ReleaseSpec, build_method
from pacdp.privacy import Adjacency, Guarantee, Ledger, Release, account, total_mu
from pacdp.tasks import Task, load_task

# A ledger needs a positive budget, even for releases whose cost rounds to zero.
SMALLEST_EPSILON = 1e-12


class Plan(Recipe):
    """A complete training before it starts."""

    arithmetic: int
    """The version of clipping, rounding and noise; another version changes the run's name."""
    data: str
    shape: tuple[int, ...]
    task: Annotated[Task, PlainValidator(load_task), PlainSerializer(lambda task: task.to_json())]
    provenance: dict[str, str] = Field({})
    """Where the features come from."""
    tuning: dict[str, Any] | None = None
    """What was tuned on public data, why, and the expected score; None without tuning."""
    method: str
    settings: dict[str, Any]
    """The settings of the method."""
    seed: int = Field(ge=0, lt=2**63)
    unit: str
    again: str = ""
    """Distinguishes a second run of the same plan in the clients' ledgers."""
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
    def _check_arithmetic(cls, given: int) -> int:
        if given != ARITHMETIC:
            raise ValueError(f"is of another version of pacdp, must be {ARITHMETIC}")
        return given

    @model_validator(mode="after")
    def _check_clients(self) -> Self:
        """With a guarantee every client has noise; without one no client has a budget."""
        private = self.algorithm.private
        for client in self.clients:
            if (private and not client.charges) or (client.budget is None) == private:
                raise ValueError(
                    f"method {self.method}: noise or budget of {client.name} do not fit"
                )
            if self.unit == "record" and client.units != client.records:
                raise ValueError(f"client {client.name}: units must be its records")
            self._check_levels(client)
        return self

    def _check_levels(self, client: ClientPlan) -> None:
        """Refuse budget levels of a client that are not those declared, or not of all its units."""
        declared = self.privacy.records
        expected = declared.levels if declared is not None and self.algorithm.private else ()
        units = [level.units for level in client.levels]
        wrong = (
            client.declared_levels != expected
            or (expected and sum(units) != client.units)
            or any(level.budget > level.epsilon for level in client.levels)
            or any(len(spec.levels) not in (0, len(expected)) for spec in client.charges)
        )
        if expected and declared is not None and declared.shares is not None:
            wrong = wrong or units != declared.counts(client.units)
        if wrong:
            raise ValueError(f"client {client.name}: levels do not fit those of privacy.records")

    @property
    def rounds(self) -> int:
        """T."""
        return self.training.rounds

    @property
    def client_sampling(self) -> ClientSampling:
        """How clients are sampled."""
        return self.training.client_sampling(len(self.clients))

    @property
    def per_round(self) -> int:
        """The number of clients that are asked in a round."""
        return self.client_sampling.per_round

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency of all guarantees."""
        return Adjacency(self.privacy.adjacency)

    @property
    def terms(self) -> dict[str, Any]:
        """The settings that a curve must have been fitted for to be valid here."""
        return {
            **self.privacy.model_dump(mode="json", exclude={"epsilon", "records"}),
            **({} if self.level_shares is None else {"records": self.level_shares}),
            # Coarse uploads add half a percent to the noise variance, which moves no optimum.
            "training": self.training.model_dump(mode="json", exclude={"upload"}),
            "model": self.model.model_dump(mode="json", exclude={"seed"}),
            "server": self.server.model_dump(mode="json"),
            "representation": None
            if self.representation is None
            else self.representation.model_dump(mode="json", exclude={"seed"}),
        }

    @property
    def level_shares(self) -> dict[str, Any] | None:
        """The budget levels of records, and the share of each in percent; None without levels.

        Shares are those declared, or those of all clients together.
        """
        declared = self.privacy.records
        if declared is None:
            return None
        if declared.shares is not None:
            parts = [100 * share for share in declared.shares]
        else:
            units = [[level.units for level in client.levels] for client in self.clients]
            totals = [sum(column) for column in zip(*units, strict=True)]
            parts = [100 * total / max(sum(totals), 1) for total in totals]
        return {"levels": list(declared.levels), "percent": round_to_total(parts, 100)}

    @cached_property
    def run(self) -> str:
        """The run's name in ledgers. Plans that differ in anything have different names."""
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return f"{self.data}-{self.method}-seed-{self.seed}-{digest[:12]}"

    @property
    def label(self) -> str:
        """A label for ledger entries where the budget is not the cost of the whole training."""
        scope = "" if self.privacy.scope == "total" else self.privacy.scope
        return ", ".join(part for part in (self.algorithm.label, scope) if part)

    @cached_property
    def algorithm(self) -> Method:
        """The method with its settings."""
        return build_method(self.method, self.settings)

    @cached_property
    def participant_schedule(self) -> tuple[tuple[int, ...], ...]:
        """The clients that are asked, for each round."""
        return self.client_sampling.draw(self.seed)

    def participants(self, round: int) -> tuple[int, ...]:  # noqa: A002
        """Return the clients that are asked in a round."""
        return self.participant_schedule[round]

    def planned_releases(self, client: int, *, scale: float = 1.0) -> list[Release]:
        """Return the releases of one participation, per record, with their noise scaled."""
        return [
            _build_release(spec, scale, self.adjacency, self.unit)
            for spec in self.clients[client].charges
        ]

    def noise_scale(self, client: int, round: int, ledger: Ledger) -> float:  # noqa: A002
        """Return the noise of the next participation relative to even spending.

        It follows from what the run has spent according to the ledger, and is infinite where
        nothing is left to spend.
        """
        client_plan, schedule = self.clients[client], self.privacy.spending
        if schedule.policy == "even":
            return 1.0
        spent = ledger.count_releases(self.run)
        budget = total_mu(self.planned_releases(client)) ** 2 * client_plan.participations
        share = schedule.share(
            completed=spent.total() // client_plan.each,
            spent=total_mu(release.times(count) for release, count in spent.items()) ** 2 / budget,
            planned=client_plan.participations,
            remaining=self.client_sampling.remaining_participations(round),
        )
        return math.inf if not share else 1 / math.sqrt(client_plan.participations * share)

    def level_costs(self, client: int) -> list[float]:
        """Return the planned ε of each budget level of a client, after the whole training."""
        client_plan, costs = self.clients[client], []
        for number in range(len(client_plan.levels)):
            releases = [r.at_level(number) for r in self.planned_releases(client)]
            guarantee = self.certify(
                [r.times(r.count * client_plan.participations) for r in releases if r is not None]
            )
            costs.append(0.0 if guarantee is None else guarantee.epsilon)
        return costs

    def max_releases(self, client: int) -> int:
        """Return the maximum number of releases per record, whatever a client is asked."""
        client_plan = self.clients[client]
        # Under replanning any round may be answered, with ever smaller shares.
        replanned = self.privacy.spending.policy == "replan"
        return client_plan.each * (self.rounds if replanned else client_plan.participations)

    def certify(self, releases: Sequence[Release]) -> Guarantee | None:
        """Return the guarantee for some releases; None where the method has none."""
        if not self.algorithm.private:
            return None
        if not releases:
            return Guarantee(
                epsilon=0.0, delta=self.privacy.delta, adjacency=self.adjacency, unit=self.unit
            )
        return account(releases, delta=self.privacy.delta)

    def planned_guarantee(self, client: int, participations: int | None = None) -> Guarantee | None:
        """Return the guarantee after all planned participations, or after so many.

        It is computed for even spending; any other schedule spends the same in total.
        """
        times = self.clients[client].participations if participations is None else participations
        releases = self.planned_releases(client)
        return self.certify([release.times(release.count * times) for release in releases])

    def budget(self, client: int) -> Guarantee | None:
        """Return the budget of the client's ledger; None where the method has no guarantee.

        Usually it is what the client requested. Where that covers a single release only, or a
        published formula claims too much, it is the true cost of the whole run.
        """
        requested = self.clients[client].budget
        if requested is None:
            return None
        if not self.label:
            return Guarantee(
                epsilon=requested,
                delta=self.privacy.delta,
                adjacency=self.adjacency,
                unit=self.unit,
            )
        planned = self.planned_guarantee(client)
        assert planned is not None
        return replace(planned, accountant="exact", epsilon=_round_up(planned.epsilon))

    def level_budgets(self, client: int) -> tuple[float, ...]:
        """Return the ε of each budget level in the client's ledger; empty without levels.

        Usually they are the declared ones; as in :meth:`budget`, they may be true costs instead.
        """
        if not self.label:
            return self.clients[client].declared_levels
        return tuple(_round_up(cost) for cost in self.level_costs(client))

    def save(self, path: Path) -> None:
        """Write the plan as JSON."""
        path.write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        advice: str = "pacdp plan EXPERIMENT --out FILE makes a new one",
        content: Any = None,
    ) -> Self:
        """Read a saved plan; one with another version of the arithmetic is refused.

        ``advice`` is part of the message of a refusal. ``content`` is what the file holds, if it
        was read before.
        """
        content = _read_json(path) if content is None else content
        refuse_other_arithmetic(path, content, mark="clients", advice=advice)
        return cls._validate(path, content)

    @classmethod
    def load_finished(cls, path: Path) -> Self:
        """Read the plan of a finished run of any version as one of this version.

        A trained model can be used as it is, and training it again would cost budget.
        """
        content = _read_json(path)
        if isinstance(content, dict):
            content = _rename_keys(content) | {"arithmetic": ARITHMETIC}
        return cls._validate(path, content)

    @classmethod
    def _validate(cls, path: Path, content: Any) -> Self:
        try:
            return cls.model_validate_json(json.dumps(content))
        except ValidationError as error:
            raise DataError(
                f"{path}: is no plan ({explain_validation_error(error, cls)})"
            ) from error


def _round_up(epsilon: float) -> float:
    """Return a ledger's budget for a planned cost."""
    # The ledger inverts ε to μ, rounding to the safe side, and all releases must still fit.
    return max(epsilon * (1 + 1e-9), SMALLEST_EPSILON)


def _rename_keys(content: Any) -> Any:
    """Rename the settings of version 0.1.0."""
    if not isinstance(content, dict):
        return content
    names = {"least": "min_factor", "stable": "hold_fraction", "any_plan": "allow_plan_mismatch"}
    return {names.get(key, key): _rename_keys(value) for key, value in content.items()}


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path}: is no plan ({error})") from error


# Every client needs its releases in every round, and most clients share them.
@lru_cache(maxsize=4096)
def _build_release(spec: ReleaseSpec, scale: float, adjacency: Adjacency, unit: str) -> Release:
    return Release(
        noise_multiplier=spec.noise_multiplier * scale,
        sensitivity=spec.sensitivity,
        adjacency=adjacency,
        count=spec.each,
        sampling_rate=spec.sampling_rate,
        unit=unit,
        levels=spec.levels,
    )
