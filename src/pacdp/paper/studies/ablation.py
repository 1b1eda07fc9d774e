"""The ablation study: what each component of a tuned configuration contributes.

*Alone*: the component is added to a configuration that has none of them. *Last*: it is removed from
the configuration that has all. Each time the distance, and thereby the learning rate, is searched
again on public data, so that no component is blamed for a wrong step size; the removal is also run
with the original distance. F is always the curve fitted under the complete configuration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pacdp.paper.figures.gains import draw_gains
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.headline import FIRST_SEED
from pacdp.paper.studies.section import Section, StepCounter, WorkItem
from pacdp.paper.studies.study import Study, StudyEntry
from pacdp.paper.studies.summary import AccuracyGain, ArmResult
from pacdp.paper.studies.tuned_runs import run_tuned, tune_entry
from pacdp.reporting.comparison import describe_terms
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


# What a component contributes, in percentage points, and how tables name it.
_GAINS = {"alone": "alone", "last": "last", "same": "last, original distance"}
Contribution = Mapping[str, AccuracyGain]
# The contributions, and the results with all components and with none.
AblationResult = tuple[Mapping[str, Contribution], ArmResult, ArmResult]


class _Runner:
    """Runs one entry at any point of the search space."""

    def __init__(self, entry: StudyEntry, store: ArtifactStore) -> None:
        # Differences between features are no part of this study: one pretraining is enough.
        self._entry = entry.model_copy(update={"pretrainings": 1})
        self._store = store
        self.tuned = tune_entry(entry, store)

    @property
    def dimensions(self) -> int:
        """The number of all directions."""
        steps = (step for step in self.tuned.why if step["setting"] == "dimension")
        return max(trial["value"] for trial in next(steps)["tried"])

    def run(self, point: Point, *, search: bool = True) -> ArmResult:
        """Run the entry at a point; ``search`` chooses the distance again."""
        start = {name: value for name, value in point.items() if name != "F"}
        tuned = self.tuned
        if search or start != tuned.chosen:
            # Distances are a factor of two apart, so few seeds suffice.
            seeds = max(1, self._entry.search // 2)
            only = ("distance",) if search else ()
            tuned = tune_entry(
                self._entry, self._store, seeds=seeds, sweeps=1, start=start, only=only
            )
        changes = point_to_changes("pac-dp", tuned.chosen)
        if point["F"]:
            curve = self.tuned.changes["methods"]["pac-dp"]["curve"]
            changes["methods"]["pac-dp"]["curve"] = curve
        tuned = tuned.model_copy(update={"changes": changes})
        settings = {"allow_plan_mismatch": True}
        return run_tuned(self._entry, tuned, self._store, first=FIRST_SEED, settings=settings)


def build_ablation(study: Study, profile: str, results: Sequence[AblationResult]) -> Section:
    """Describe what each component contributes."""
    texts, rows, panels = [], [], {}
    for entry, result in zip(study.entries, results, strict=True):
        texts.append(_format_text(entry, result))
        contributions, *_ = result
        rows += [
            {
                "study": study.name,
                "setting": entry.setting,
                "track": entry.track,
                "part": name,
                **{
                    f"{kind}_{field}": getattr(gain, field)
                    for kind, gain in contribution.items()
                    for field in ("points", "standard_error")
                },
            }
            for name, contribution in contributions.items()
        ]
        panels[f"{entry.setting}, {entry.track}"] = {
            name: {_GAINS[kind]: gain for kind, gain in contribution.items()}
            for name, contribution in contributions.items()
        }
    return Section(study, "\n\n".join(texts), table.format_csv(rows), draw_gains(panels))


def _run(entry: StudyEntry, store: ArtifactStore, counter: StepCounter) -> AblationResult:
    runner = _Runner(entry, store)
    chosen: dict[str, Any] = {**runner.tuned.chosen, "F": True}
    absent = {c.setting: c.absent for c in COMPONENTS.values() if c.setting in chosen}
    if "dimension" in absent:
        absent["dimension"] = runner.dimensions
    with counter.step(f"{entry.setting}: all and none", 2):
        complete, bare = runner.run(chosen, search=False), runner.run({**chosen, **absent})
    contributions: dict[str, Contribution] = {}
    for name, component in COMPONENTS.items():
        setting, present = component.setting, component.present
        with counter.step(f"{entry.setting}: {name}", 2):
            value = chosen.get(setting) if present is None else present
            if setting not in chosen or value == absent[setting]:
                continue
            alone = runner.run({**chosen, **absent, setting: value})
            unchanged = value == chosen[setting]
            with_it = complete if unchanged else runner.run({**chosen, setting: value})
            without = {**chosen, setting: absent[setting]}
            contributions[name] = {
                "alone": alone.gain_over(bare),
                "last": with_it.gain_over(runner.run(without)),
                "same": with_it.gain_over(runner.run(without, search=False)),
            }
    return contributions, complete, bare


def _format_text(entry: StudyEntry, result: AblationResult) -> str:
    contributions, complete, bare = result
    caption = (
        f"**{entry.setting}, {entry.track}.** With all components "
        f"{table.format_percent(complete.accuracy)} %, with none "
        f"{table.format_percent(bare.accuracy)} %; ε at {describe_terms(complete.runs[0].plan)}. "
        "Points ± standard error, paired by seed."
    )
    rows = [
        [name, *map(_format_gain, contribution.values())]
        for name, contribution in contributions.items()
    ]
    return f"{caption}\n\n{table.format_markdown(['component', *_GAINS.values()], rows)}"


def _format_gain(gain: AccuracyGain) -> str:
    return str(gain) if gain.verdict == "wins" else f"{gain}, {gain.verdict}"
