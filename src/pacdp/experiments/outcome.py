"""A finished run as one value: what was planned, what each round saw, and what came of it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pacdp.arithmetic import RUN_AGAIN, refuse_other_arithmetic
from pacdp.errors import DataError
from pacdp.experiments.execute import execute, summary
from pacdp.experiments.prepare import Prepared
from pacdp.federation import Plan, Result
from pacdp.storage import write_whole

# What tables, figures and reports ask a result for.
_NEEDED = (
    *("experiment", "accuracy", "metrics", "before_private_data", "chance", "rounds", "seconds"),
    *("parameters", "bytes_per_round", "accuracy_by_budget", "clients"),
)

_NUMBERS = ("accuracy", "loss")


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """All that tables, figures and reports are made from; of the model nothing is kept."""

    plan: Plan
    rows: Sequence[Mapping[str, Any]]
    """One for each round, as in ``metrics.jsonl``."""
    result: Mapping[str, Any]
    """The summary, as in ``result.json``."""

    @classmethod
    def of(cls, prepared: Prepared, result: Result, *, profile: str | None = None) -> "Outcome":
        """What came of a run that has just ended."""
        found = summary(prepared, result, profile=profile)
        return cls(plan=result.plan, rows=list(result.history), result=found)

    @classmethod
    def of_folder(cls, folder: Path) -> "Outcome":
        """What is in the folder of a finished run."""
        for name in ("plan.json", "metrics.jsonl", "result.json"):
            if not (folder / name).is_file():
                raise DataError(f"{folder}: has no {name}, must be the folder of a finished run")
        try:
            lines = (folder / "metrics.jsonl").read_text().splitlines()
            rows = [json.loads(line) for line in lines]
            result = json.loads((folder / "result.json").read_text())
        except ValueError as error:
            raise DataError(f"{folder}: is damaged ({error})") from error
        _refuse_other(folder, rows, result)
        plan = Plan.load(folder / "plan.json", anew=RUN_AGAIN)
        return cls(plan=plan, rows=rows, result=result)

    def save(self, path: Path) -> None:
        """Write it as one JSON file, whole or not at all."""
        content = {
            "plan": self.plan.model_dump(mode="json"),
            "rows": list(self.rows),
            "result": dict(self.result),
        }
        write_whole(path, json.dumps(content, allow_nan=False, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Outcome":
        """Read what :meth:`save` wrote."""
        try:
            content = json.loads(path.read_text())
            refuse_other_arithmetic(path, content["plan"], mark="clients", anew=RUN_AGAIN)
            plan = Plan.model_validate(content["plan"])
            rows, result = content["rows"], content["result"]
        except KeyError as error:
            raise DataError(f"{path}: is no outcome of a run (it has no {error})") from error
        except (ValueError, TypeError, ValidationError) as error:
            raise DataError(f"{path}: is no outcome of a run ({error})") from error
        _refuse_other(path, rows, result)
        return cls(plan=plan, rows=rows, result=result)


def _refuse_other(path: Path, rows: Any, result: Any) -> None:
    """Refuse what a damaged file or another version left."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: is damaged (its rounds are no objects)")
    if any(not isinstance(row.get(key, 0.0), int | float) for row in rows for key in _NUMBERS):
        raise DataError(f"{path}: is damaged (a round's {' or '.join(_NUMBERS)} is no number)")
    lacking = [key for key in _NEEDED if not isinstance(result, dict) or key not in result]
    if lacking:
        raise DataError(f"{path}: its result has no {lacking[0]}; was it made by another version?")


def compare(
    make: Callable[[str, int], Prepared],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    profile: str | None = None,
    observe: Callable[[str, int], None] | None = None,
) -> dict[str, list[Outcome]]:
    """What came of each method over the seeds."""
    found: dict[str, list[Outcome]] = {name: [] for name in methods}
    for name in methods:
        for seed in seeds:
            if observe is not None:
                observe(name, seed)
            prepared = make(name, seed)
            found[name].append(Outcome.of(prepared, execute(prepared), profile=profile))
    return found
