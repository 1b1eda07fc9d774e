"""The result of a run as one typed value, and its two forms on disk.

A run folder (:mod:`pacdp.experiments.run_folder`) holds the parts of a result in files of their
own; :meth:`RunResult.save_file` writes everything but the weights into one JSON file.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import ConfigDict, Field, ValidationError, field_serializer
from safetensors.torch import load_file
from torch import nn

from pacdp.arithmetic import RUN_AGAIN, refuse_other_arithmetic
from pacdp.config import Real, Settings, explain_validation_error
from pacdp.errors import DataError
from pacdp.experiments.cost import bytes_per_round
from pacdp.experiments.prepare import PreparedRun
from pacdp.federation import ClientResult, LocalModel, Plan, Result, RoundResult
from pacdp.federation.evaluation import accuracy_by_budget
from pacdp.federation.local_model import Tensors
from pacdp.storage import write_atomically


class Traffic(Settings):
    """Bytes of all messages of a run, with headers and signatures, each counted once."""

    broadcasts: int
    """The number of broadcasts sent, summed over the clients."""
    broadcast_bytes: int
    answers: int
    """The number of replies and refusals received."""
    answer_bytes: int


class RunResult(Settings):
    """Everything that is known about a finished run. What does not exist is None.

    ``to_json`` gives the content of ``result.json``; the plan, the history and the weights have
    files of their own.
    """

    # Files of a later version may say more about a run.
    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True)

    experiment: str
    method: str
    seed: int
    profile: str | None
    accuracy: Real | None
    metrics: Mapping[str, Real]
    """Scores of the final model on the test records."""
    before_private_data: Mapping[str, Real] | None
    """Scores of the initial model, where public records went into it or into its features."""
    chance: Real | None
    """The headline metric of the best constant prediction, such as the most frequent class."""
    rounds: int
    seconds: Real
    parameters: int
    bytes_per_round: int
    accuracy_by_budget: Mapping[float, Real]
    """The accuracy for the records of the clients that hold each budget ε."""
    clients: tuple[ClientResult, ...]
    accuracy_by_level: Mapping[float, Real] = Field({}, exclude_if=lambda levels: not levels)
    """The accuracy on test records of each budget level, where they have budgets of their own."""
    traffic: Traffic | None = Field(None, exclude_if=lambda traffic: traffic is None)
    """The measured traffic; None in a simulation, which sends nothing."""

    plan: Plan = Field(exclude=True, repr=False)
    history: tuple[RoundResult, ...] = Field(exclude=True, repr=False)
    weights: Tensors | None = Field(None, exclude=True, repr=False)
    """The final model; None for a result that was read without it."""

    @field_serializer("accuracy_by_budget", "accuracy_by_level")
    def _name_budgets(self, accuracies: Mapping[float, float]) -> dict[str, float]:
        return {f"{budget:g}": accuracy for budget, accuracy in accuracies.items()}

    @classmethod
    def of(cls, prepared: PreparedRun, result: Result, *, profile: str | None = None) -> Self:
        """Describe a simulated run that has just ended."""
        return cls.describe(
            result,
            experiment=prepared.experiment.name,
            profile=profile,
            before=prepared.before,
            test_counts=_test_counts(prepared),
        )

    @classmethod
    def describe(
        cls,
        result: Result,
        *,
        experiment: str,
        profile: str | None = None,
        before: Mapping[str, float] | None = None,
        test_counts: Sequence[int] | None = None,
        traffic: Traffic | None = None,
    ) -> Self:
        """Describe a run; ``test_counts`` are the records behind each client's accuracy."""
        plan, clients = result.plan, tuple(result.clients())
        budgets = [client.epsilon_budget for client in clients]
        counts = [client.records for client in clients] if test_counts is None else test_counts
        levels = accuracy_by_budget(result.accuracies, budgets, counts)
        return cls(
            experiment=experiment,
            method=plan.method,
            seed=plan.seed,
            profile=profile,
            accuracy=result.metrics.get("accuracy"),
            metrics=result.metrics,
            before_private_data=before,
            chance=result.chance,
            rounds=plan.rounds,
            seconds=result.seconds,
            parameters=result.parameters,
            bytes_per_round=bytes_per_round(plan, result.parameters),
            # Budgets as they are written, so that a result that is read back is the same.
            accuracy_by_budget={float(f"{budget:g}"): value for budget, value in levels.items()},
            clients=clients,
            accuracy_by_level={
                float(f"{level:g}"): value for level, value in result.accuracy_by_level.items()
            },
            plan=plan,
            history=tuple(result.history),
            weights=result.model,
            traffic=traffic,
        )

    def __eq__(self, other: object) -> bool:
        """Compare everything but the weights, which are tensors."""
        if not isinstance(other, RunResult):
            return False
        mine, theirs = (vars(result) | {"weights": None} for result in (self, other))
        return mine == theirs

    @property
    def total_bytes(self) -> int:
        """The traffic of the whole run: measured, or as planned in a simulation."""
        if self.traffic is None:
            return self.bytes_per_round * self.rounds
        return self.traffic.broadcast_bytes + self.traffic.answer_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``result.json``."""
        return self.model_dump(mode="json", by_alias=True)

    def without_weights(self) -> Self:
        """Return a copy that keeps no model in memory."""
        return self.model_copy(update={"weights": None})

    def model(self) -> nn.Module:
        """Build the trained model, ready for inference."""
        if self.weights is None:
            raise DataError(f"{self.plan.run}: this result was read without the model's weights")
        local_model = LocalModel(self.plan)
        local_model.load(self.weights)
        return local_model.model.eval()

    @classmethod
    def load(cls, folder: Path | str, *, for_inference: bool = False) -> Self:
        """Read the folder of a finished run.

        ``for_inference`` also reads the model's weights, and accepts runs whose arithmetic is that
        of an earlier version: their models remain usable, while their numbers must not be compared
        with those of this version.
        """
        folder = Path(folder)
        names = ["plan.json", "metrics.jsonl", "result.json"]
        for name in [*names, "model.safetensors"] if for_inference else names:
            if not (folder / name).is_file():
                raise DataError(f"{folder}: has no {name}, must be the folder of a finished run")
        weights = None
        try:
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            rows = [json.loads(line) for line in lines]
            content = json.loads((folder / "result.json").read_text())
            if for_inference:
                weights = load_file(folder / "model.safetensors")
        except Exception as error:  # damaged files can fail in any way
            raise DataError(f"{folder}: is damaged ({error})") from error
        if for_inference:
            plan = Plan.load_finished(folder / "plan.json")
        else:
            plan = Plan.load(folder / "plan.json", advice=RUN_AGAIN)
        return cls._from_json(folder, plan, rows, content, weights)

    def save_file(self, path: Path) -> None:
        """Write everything but the weights as one JSON file, completely or not at all."""
        content = {
            "plan": self.plan.model_dump(mode="json"),
            "rows": [row.to_json() for row in self.history],
            "result": self.to_json(),
        }
        write_atomically(path, json.dumps(content, allow_nan=False, ensure_ascii=False) + "\n")

    @classmethod
    def load_file(cls, path: Path) -> Self:
        """Read what :meth:`save_file` wrote."""
        try:
            content = json.loads(path.read_text())
            refuse_other_arithmetic(path, content["plan"], mark="clients", advice=RUN_AGAIN)
            plan = Plan.model_validate(content["plan"])
            rows, result = content["rows"], content["result"]
        except KeyError as error:
            raise DataError(f"{path}: is no result of a run (it has no {error})") from error
        except (ValueError, TypeError) as error:
            raise DataError(f"{path}: is no result of a run ({error})") from error
        return cls._from_json(path, plan, rows, result)

    @classmethod
    def _from_json(
        cls, path: Path, plan: Plan, rows: Any, content: Any, weights: Tensors | None = None
    ) -> Self:
        """Validate what was read; a damaged file is refused in one line."""
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{path}: is damaged (a round is no object)")
        if not isinstance(content, dict):
            raise DataError(f"{path}: is damaged (the result is no object)")
        try:
            history = tuple(RoundResult.from_json(row) for row in rows)
        except ValidationError as error:
            said = explain_validation_error(error, RoundResult, "round")
            raise DataError(f"{path}: is damaged ({said})") from None
        parts = {"plan": plan, "history": history, "weights": weights}
        try:
            return cls.model_validate({**content, **parts})
        except ValidationError as error:
            said = explain_validation_error(error, cls, "result")
            raise DataError(f"{path}: {said}; was it made by another version?") from None


def collect_epsilons(results: Iterable[RunResult], field: str) -> list[float]:
    """Collect one kind of ε over all clients of all results, sorted, where there is one."""
    values = [getattr(client, field) for result in results for client in result.clients]
    return sorted(value for value in values if value is not None)


def _test_counts(prepared: PreparedRun) -> Sequence[int]:
    """Count the records behind each client's accuracy."""
    holders = prepared.dataset.test.clients
    if prepared.partition.kind == "natural" and holders is not None:
        return np.bincount(holders, minlength=len(prepared.partition)).tolist()
    return prepared.partition.sizes.tolist()
