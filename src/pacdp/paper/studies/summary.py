"""What a study found: its runs grouped by arm, reading and budget, and what they amount to."""

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
    """One arm under one reading: its runs over seeds."""

    arm: str
    reading: Reading
    runs: Sequence[RunResult]
    epsilon: float | None = None
    """The budget of a sweep."""

    @property
    def accuracies(self) -> list[float]:
        """At the end of each run."""
        return [run.metrics["accuracy"] for run in self.runs]

    @property
    def accuracy(self) -> SampleStats:
        """At the end, over seeds."""
        return SampleStats.of(self.accuracies)

    def after(self, rounds: int) -> SampleStats | None:
        """After so many rounds, if the runs have as many."""
        found = [self.over_rounds(run).get(rounds) for run in self.runs]
        known = [value for value in found if value is not None]
        return SampleStats.of(known) if len(known) == len(found) else None

    @staticmethod
    def over_rounds(run: RunResult) -> dict[int, float]:
        """Accuracy by round, where it was looked at."""
        return {
            row.round: row.metrics["accuracy"] for row in run.history if "accuracy" in row.metrics
        }

    def rounds_to(self, target: float) -> list[int | None]:
        """In each run the first round that reached the target; None where none did."""
        return [
            next((n for n, value in self.over_rounds(run).items() if value >= target), None)
            for run in self.runs
        ]

    def epsilons(self, field: str) -> list[float]:
        """All clients' ε of one kind over all runs."""
        return collect_epsilons(self.runs, field)

    @property
    def clients(self) -> list[float]:
        """What each client sees at the end, in every run."""
        held = (client.accuracy for run in self.runs for client in run.clients)
        return [value for value in held if value is not None]

    @property
    def before(self) -> float | None:
        """The accuracy before any private data, where public data trained the first model."""
        found = [run.before_private_data for run in self.runs]
        known = [one["accuracy"] for one in found if one is not None]
        return statistics.fmean(known) if known else None


@dataclass(frozen=True, eq=False)
class StudyResult:
    """All rows of a study."""

    study: Study
    profile: str
    rows: Sequence[ArmResult]
    sweep: Sequence[ArmResult]
    data: str
    """What it was trained on."""

    @property
    def chance(self) -> float:
        """What always saying the most frequent class reaches; the mean over seeds."""
        chances = [run.chance for run in self.rows[0].runs]
        return statistics.fmean(chance for chance in chances if chance is not None)

    def row(self, arm: str, reading: Reading) -> ArmResult | None:
        """One of the rows."""
        found = (row for row in self.rows if (row.arm, row.reading) == (arm, reading))
        return next(found, None)

    def arms(self, reading: Reading) -> dict[str, Sequence[RunResult]]:
        """The runs of each arm under a reading."""
        return {row.arm: row.runs for row in self.rows if row.reading == reading}


def collect_results(study: Study, runs: Runs, *, profile: str, data: str) -> StudyResult:
    """Group a study's runs."""

    def row(arm: str, reading: Reading, epsilon: float | None) -> ArmResult:
        wanted = (arm, reading, epsilon)
        chosen = [o for c, o in runs.items() if (c.arm, c.reading, c.epsilon) == wanted]
        return ArmResult(arm, reading, chosen, epsilon)

    return StudyResult(
        study,
        profile,
        [row(arm, reading, None) for arm in study.arms for reading in study.arm(arm).readings],
        [
            row(arm, "certified", epsilon)
            for arm in study.arms
            for epsilon in study.epsilons
            if "certified" in study.arm(arm).readings
        ],
        data,
    )


@dataclass(frozen=True)
class AccuracyGain:
    """How many points one arm is above another, seed by seed."""

    other: str
    points: float
    standard_error: float
    seeds: int

    @classmethod
    def of(cls, other: str, ours: Sequence[float], theirs: Sequence[float]) -> "AccuracyGain":
        """From the accuracies of both on the same seeds.

        >>> AccuracyGain.of("fixed", [0.5, 0.75], [0.5, 0.5]).points
        12.5
        """
        difference = paired_difference(ours, theirs, scale=100)
        return cls(other, difference.mean, difference.standard_error, difference.count)

    @property
    def verdict(self) -> str:
        """What can be said at 95 %, by Student's t over the seeds.

        >>> AccuracyGain("fixed", points=3.0, standard_error=1.0, seeds=5).verdict
        'wins'
        >>> AccuracyGain("fixed", points=3.0, standard_error=1.0, seeds=3).verdict
        'not to be told apart'
        """
        if abs(self.points) <= confidence_radius(self.standard_error, self.seeds):
            return "not to be told apart"
        return "wins" if self.points > 0 else "loses"


def compute_gains(found: StudyResult, arm: str = "pac-dp") -> list[AccuracyGain]:
    """PAC-DP against each other certified arm, on the same seeds.

    What public data trained first is another track, and is not compared.
    """
    ours = found.row(arm, "certified")
    if ours is None:
        return []
    made = []
    for row in found.rows:
        private = bool(row.epsilons("epsilon_spent"))
        if row.reading != "certified" or row.arm == arm or not private or row.before is not None:
            continue
        made.append(AccuracyGain.of(row.arm, ours.accuracies, row.accuracies))
    return made
