"""The ablation study: what each component of a tuned configuration contributes.

*Alone*: the component is added to a configuration that has none of them. *Last*: it is removed from
the configuration that has all. Each time the distance, and thereby the learning rate, is searched
again on public data, so that no component is blamed for a wrong step size; the removal is also run
with the original distance. F is always the curve fitted under the complete configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pacdp.formatting import format_terms
from pacdp.paper.figures.gains import draw_gains
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.headline import FIRST_SEED, expand_runs
from pacdp.paper.studies.jobs import Job
from pacdp.paper.studies.section import Section, StepCounter, WorkItem
from pacdp.paper.studies.study import Study, StudyEntry, load_study_experiment
from pacdp.paper.studies.summary import AccuracyGain, ArmResult
from pacdp.tuning.search_space import point_to_changes

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Component:
    """A setting of the search, its value without the component, and its value with it.

    ``present`` is None if that value is the one that the search has chosen.
    """

    setting: str
    absent: Any
    present: Any = None


COMPONENTS = {
    "few dimensions": Component("dimension", "all"),
    "directions scaled": Component("whitening", 0.0),
    "full batches": Component("batch", 64),
    "few rounds": Component("rounds", 40),
    "no intercept": Component("bias", True),
    "F(ε), not one C": Component("F", False, True),
    "λ(t)": Component("schedule", "none", "cosine"),
    "weights": Component("weights", "size"),
    "hot start": Component("hot start", "none", 0.01),
    "averaging": Component("averaging", 0.0, 0.5),
}


def split_ablation(study: Study) -> list[WorkItem]:
    """List one item per entry."""
    return [
        WorkItem(f"{study.name}: {entry.setting}", 2 + 2 * len(COMPONENTS), partial(_run, entry))
        for entry in study.entries
    ]


@dataclass(frozen=True)
class Contribution:
    """What a component contributes, in percentage points."""

    alone: AccuracyGain
    last: AccuracyGain
    same: AccuracyGain
    """Last, with the original distance."""


class _Runner:
    """Runs one entry at any point of the search space."""

    def __init__(self, entry: StudyEntry, store: ArtifactStore) -> None:
        # Differences between features are no part of this study: one pretraining is enough.
        self._entry = entry.model_copy(update={"pretrainings": 1})
        self._store = store
        self._base = load_study_experiment(entry.experiment, entry.changes, profile=store.profile)
        self.tuned = store.configuration(
            self._base, "pac-dp", seeds=entry.search, sweeps=entry.sweeps
        )

    @property
    def dimensions(self) -> int:
        """The number of all directions."""
        steps = (step for step in self.tuned.why if step["setting"] == "dimension")
        return max(trial["value"] for trial in next(steps)["tried"])

    def run(self, point: Point, *, search: bool = True) -> ArmResult:
        """Run the entry at a point; ``search`` chooses the distance again."""
        start = {name: value for name, value in point.items() if name != "F"}
        tuned = self.tuned
        if search or start != self.tuned.chosen:
            tuned = self._store.configuration(
                self._base,
                "pac-dp",
                # Distances are a factor of two apart, so few seeds suffice.
                seeds=max(1, self._entry.search // 2),
                sweeps=1,
                start=start,
                only=("distance",) if search else (),
            )
        changes = point_to_changes("pac-dp", tuned.chosen)
        if point["F"]:
            curve = self.tuned.changes["methods"]["pac-dp"]["curve"]
            changes["methods"]["pac-dp"]["curve"] = curve
        tuned = tuned.model_copy(update={"changes": changes})
        runs = []
        for experiment, seed in expand_runs(
            self._entry, tuned, self._store.profile, first=FIRST_SEED, skew=None
        ):
            method = experiment.build_method("pac-dp", {"allow_plan_mismatch": True})
            runs.append(self._store.result(Job(experiment, method, seed)))
        return ArmResult("pac-dp", "certified", runs)


def build_ablation(study: Study, store: ArtifactStore, counter: StepCounter) -> Section:
    """Add each component alone and remove it last, and describe the differences."""
    texts, rows, panels = [], [], {}
    for entry in study.entries:
        contributions, complete, bare = _run(entry, store, counter)
        texts.append(_format_text(entry, contributions, complete, bare))
        for name, contribution in contributions.items():
            row = {"study": study.name, "setting": entry.setting, "track": entry.track}
            rows.append({**row, "part": name, **_list_values(contribution)})
        panels[f"{entry.setting}, {entry.track}"] = {
            name: dict(zip(_GAINS, vars(contribution).values(), strict=True))
            for name, contribution in contributions.items()
        }
    return Section(study, "\n\n".join(texts), table.format_csv(rows), draw_gains(panels))


def _run(
    entry: StudyEntry, store: ArtifactStore, counter: StepCounter
) -> tuple[dict[str, Contribution], ArmResult, ArmResult]:
    """Return the contributions, and the results with all components and with none."""
    runner = _Runner(entry, store)
    chosen: dict[str, Any] = {**runner.tuned.chosen, "F": True}
    components = {
        name: replace(component, absent=runner.dimensions)
        if component.setting == "dimension"
        else component
        for name, component in COMPONENTS.items()
        if component.setting in chosen
    }
    absent = {component.setting: component.absent for component in components.values()}
    with counter.step(f"{entry.setting}: all and none", 2):
        complete, bare = runner.run(chosen, search=False), runner.run({**chosen, **absent})
    contributions: dict[str, Contribution] = {}
    for name in COMPONENTS:
        with counter.step(f"{entry.setting}: {name}", 2):
            if name not in components:
                continue
            setting, present = components[name].setting, components[name].present
            value = chosen[setting] if present is None else present
            if value == absent[setting]:
                continue
            alone = runner.run({**chosen, **absent, setting: value})
            unchanged = value == chosen[setting]
            with_it = complete if unchanged else runner.run({**chosen, setting: value})
            without = {**chosen, setting: absent[setting]}
            contributions[name] = Contribution(
                alone=alone.gain_over(bare),
                last=with_it.gain_over(runner.run(without)),
                same=with_it.gain_over(runner.run(without, search=False)),
            )
    return contributions, complete, bare


_GAINS = ("alone", "last", "last, original distance")


def _format_text(
    entry: StudyEntry,
    contributions: Mapping[str, Contribution],
    complete: ArmResult,
    bare: ArmResult,
) -> str:
    privacy = complete.runs[0].plan.privacy
    caption = (
        f"**{entry.setting}, {entry.track}.** With all components "
        f"{table.format_percent(complete.accuracy)} %, with none "
        f"{table.format_percent(bare.accuracy)} %; ε at "
        f"{format_terms(privacy.delta, privacy.adjacency)}. Points ± standard error, paired by "
        "seed."
    )
    rows = [
        [name, *map(_format_gain, vars(contribution).values())]
        for name, contribution in contributions.items()
    ]
    return f"{caption}\n\n{table.format_markdown(['component', *_GAINS], rows)}"


def _format_gain(gain: AccuracyGain) -> str:
    return str(gain) if gain.verdict == "wins" else f"{gain}, {gain.verdict}"


def _list_values(contribution: Contribution) -> dict[str, float]:
    values = {}
    for kind, gain in vars(contribution).items():
        values[f"{kind}_points"] = gain.points
        values[f"{kind}_standard_error"] = gain.standard_error
    return values
