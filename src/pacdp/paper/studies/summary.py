"""The results of a study: its runs by arm, reading and budget, and their statistics."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pacdp.experiments import RunResult
from pacdp.experiments.results import collect_epsilons
from pacdp.paper.studies.jobs import StudyRun
from pacdp.paper.studies.study import Reading, Study
from pacdp.stats import SampleStats, confidence_radius, paired_difference

Runs = Mapping[StudyRun, RunResult]


@dataclass(frozen=True, eq=False)
class ArmResult:
    """The runs of one arm under one reading, one per seed."""

    arm: str
    reading: Reading
    runs: Sequence[RunResult]
    epsilon: float | None = None
    """Budget, if the arm is part of a sweep."""

    @property
    def accuracies(self) -> list[float]:
        """Final accuracy of each run."""
        return [run.metrics["accuracy"] for run in self.runs]

    @property
    def accuracy(self) -> SampleStats:
        """Final accuracy over seeds."""
        return SampleStats.of(self.accuracies)

    def after(self, rounds: int) -> SampleStats | None:
        """Return the accuracy after some rounds, or None if a run has no value for it."""
        values = [self.over_rounds(run).get(rounds) for run in self.runs]
        known = [value for value in values if value is not None]
        return SampleStats.of(known) if len(known) == len(values) else None

    @staticmethod
    def over_rounds(run: RunResult) -> dict[int, float]:
        """Return the accuracy by round, for rounds that were evaluated."""
        return {
            row.round: row.metrics["accuracy"] for row in run.history if "accuracy" in row.metrics
        }

    def rounds_to(self, target: float) -> list[int | None]:
        """Return the first round of each run that reached the target; None if none did."""
        return [
            next((n for n, value in self.over_rounds(run).items() if value >= target), None)
            for run in self.runs
        ]

    @property
    def clients(self) -> list[float]:
        """Final accuracy of every client in every run."""
        values = (client.accuracy for run in self.runs for client in run.clients)
        return [value for value in values if value is not None]

    @property
    def before(self) -> float | None:
        """Mean accuracy of the initial model, if it was trained on public data."""
        scores = [run.before_private_data for run in self.runs]
        known = [score["accuracy"] for score in scores if score is not None]
        return statistics.fmean(known) if known else None

    def gain_over(self, other: "ArmResult") -> "AccuracyGain":
        """Compare with another arm, seed by seed."""
        points = paired_difference(self.accuracies, other.accuracies, scale=100)
        return AccuracyGain(other.arm, points.mean, points.standard_error, points.count)


@dataclass(frozen=True, eq=False)
class StudyResult:
    """All results of a study."""

    study: Study
    profile: str
    rows: Sequence[ArmResult]
    sweep: Sequence[ArmResult]
    data: str
    """Description of the data that it was trained on."""

    @property
    def chance(self) -> float:
        """Accuracy of the majority-class baseline, averaged over seeds."""
        chances = [run.chance for run in self.rows[0].runs]
        return statistics.fmean(chance for chance in chances if chance is not None)

    def row(self, arm: str, reading: Reading) -> ArmResult | None:
        """Return the runs of an arm under a reading, if there are any."""
        rows = (row for row in self.rows if (row.arm, row.reading) == (arm, reading))
        return next(rows, None)

    def arms(self, reading: Reading) -> dict[str, Sequence[RunResult]]:
        """Return the runs of every arm under a reading."""
        return {row.arm: row.runs for row in self.rows if row.reading == reading}


def collect_results(study: Study, runs: Runs, *, profile: str, data: str) -> StudyResult:
    """Group the runs of a study by arm, reading and budget."""
    groups: dict[tuple[str, Reading, float | None], list[RunResult]] = {}
    for spec, run in runs.items():
        groups.setdefault((spec.arm, spec.reading, spec.epsilon), []).append(run)
    results = [
        ArmResult(arm, reading, members, epsilon)
        for (arm, reading, epsilon), members in groups.items()
    ]
    rows = [result for result in results if result.epsilon is None]
    sweep = [result for result in results if result.epsilon is not None]
    return StudyResult(study, profile, rows, sweep, data)


@dataclass(frozen=True)
class AccuracyGain:
    """Mean difference between two arms in percentage points, paired by seed."""

    other: str
    points: float
    standard_error: float
    seeds: int

    def __str__(self) -> str:
        return f"{self.points:+.1f} ± {self.standard_error:.1f}"

    @property
    def verdict(self) -> str:
        """Whether the difference is significant at 95 %, by Student's t over the seeds.

        >>> AccuracyGain("fixed", points=3.0, standard_error=1.0, seeds=5).verdict
        'wins'
        >>> AccuracyGain("fixed", points=3.0, standard_error=1.0, seeds=3).verdict
        'no significant difference'
        """
        if abs(self.points) <= confidence_radius(self.standard_error, self.seeds):
            return "no significant difference"
        return "wins" if self.points > 0 else "loses"


def compute_gains(result: StudyResult, arm: str = "pac-dp") -> list[AccuracyGain]:
    """Compare PAC-DP with every other private arm, certified, on the same seeds.

    Arms whose initial model was trained on public data belong to another track and are left out.
    """
    ours = result.row(arm, "certified")
    if ours is None:
        return []
    return [
        ours.gain_over(row)
        for row in result.rows
        if row.reading == "certified"
        and row.arm != arm
        and collect_epsilons(row.runs, "epsilon_spent")
        and row.before is None
    ]
