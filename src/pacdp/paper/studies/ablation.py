"""What each part of a tuned plan adds: alone, and last.

*Alone*: the part is put into a plan that has none of them. *Last*: it is taken out of the plan that
has all. Each time the distance, and with it the learning rate, is searched again on public data, so
that no part is blamed for a step size; and the last once more at the distance of the plan. F is
everywhere the one that was fitted under the plan that has all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pacdp.formatting import format_terms
from pacdp.paper.figures.gains import draw_gains
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.headline import FIRST, expand_runs
from pacdp.paper.studies.jobs import Job
from pacdp.paper.studies.section import Observer, Section, WorkItem
from pacdp.paper.studies.study import Study, StudyEntry, load_study_experiment
from pacdp.paper.studies.summary import AccuracyGain, ArmResult
from pacdp.tuning.search_space import point_to_changes

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Component:
    """A part of a plan: the setting it is, what it is without, and what with if not the plan's."""

    setting: str
    without: Any
    with_it: Any = None


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
    """Each entry is one."""
    return [
        WorkItem(f"{study.name}: {entry.setting}", 2 + 2 * len(COMPONENTS), partial(_added, entry))
        for entry in study.entries
    ]


@dataclass(frozen=True)
class Contribution:
    """What a part adds, in points."""

    alone: AccuracyGain
    last: AccuracyGain
    same: AccuracyGain
    """Last, at the distance of the plan."""


class _Entry:
    """The runs of one entry, by the point they were planned at."""

    def __init__(self, entry: StudyEntry, store: ArtifactStore) -> None:
        # What differs between representations is not asked here: one is enough.
        self._entry = entry.model_copy(update={"pretrainings": 1})
        self._shelf = store
        self._base = load_study_experiment(entry.experiment, entry.changes, profile=store.profile)
        self.plan = store.plan(self._base, "pac-dp", seeds=entry.search, sweeps=entry.sweeps)

    @property
    def most(self) -> int:
        """As many directions as there are."""
        tried = next(step["tried"] for step in self.plan.why if step["setting"] == "dimension")
        return max(one["value"] for one in tried)

    def row(self, point: Point, *, again: bool = True) -> ArmResult:
        """The runs at a point; ``again`` searches its distance anew."""
        start = {name: value for name, value in point.items() if name != "F"}
        tuned = self.plan
        if again or start != self.plan.chosen:
            tuned = self._shelf.plan(
                self._base,
                "pac-dp",
                # Distances lie a factor of two apart: few seeds tell them.
                seeds=max(1, self._entry.search // 2),
                sweeps=1,
                start=start,
                only=("distance",) if again else (),
            )
        made = point_to_changes("pac-dp", tuned.chosen)
        if point["F"]:
            made["methods"]["pac-dp"]["curve"] = self.plan.changes["methods"]["pac-dp"]["curve"]
        tuned = tuned.model_copy(update={"changes": made})
        runs = [
            self._shelf.result(
                Job(
                    experiment,
                    experiment.build_method("pac-dp", {"allow_plan_mismatch": True}),
                    seed,
                )
            )
            for experiment, seed in expand_runs(
                self._entry, tuned, self._shelf.profile, first=FIRST, skew=None
            )
        ]
        return ArmResult("pac-dp", "certified", runs)


def build_ablation(study: Study, store: ArtifactStore, observe: Observer) -> Section:
    """Put each part in alone and take it out last, and tell what that does."""
    texts, lines, panels = [], [], {}
    for entry in study.entries:
        found, whole, none = _added(entry, store, observe)
        texts.append(_text(entry, found, whole, none))
        lines += [_line(study, entry, name, added) for name, added in found.items()]
        panels[f"{entry.setting}, {entry.track}"] = {
            name: {"alone": added.alone, "last": added.last, "last, distance as it was": added.same}
            for name, added in found.items()
        }
    figure = draw_gains(panels)
    return Section(study, "\n\n".join(texts), table.format_csv(lines), figure)


def _added(
    entry: StudyEntry, store: ArtifactStore, observe: Observer
) -> tuple[dict[str, Contribution], ArmResult, ArmResult]:
    """What each part adds, and the rows of the plan with all of them and with none."""
    runs = _Entry(entry, store)
    chosen: dict[str, Any] = {**runs.plan.chosen, "F": True}
    pieces = {
        name: replace(piece, without=runs.most) if piece.setting == "dimension" else piece
        for name, piece in COMPONENTS.items()
        if piece.setting in chosen
    }
    bare = {**chosen, **{piece.setting: piece.without for piece in pieces.values()}}
    observe(f"{entry.setting}: all and none", 0)
    whole, none = runs.row(chosen, again=False), runs.row(bare)
    observe(f"{entry.setting}: all and none", 2)
    found: dict[str, Contribution] = {}
    for name in COMPONENTS:
        words = f"{entry.setting}: {name}"
        observe(words, 0)
        if name in pieces:
            added = _one(runs, chosen, bare, pieces[name], whole, none)
            found |= {} if added is None else {name: added}
        observe(words, 2)
    return found, whole, none


def _one(
    runs: _Entry, chosen: Point, bare: Point, piece: Component, whole: ArmResult, none: ArmResult
) -> Contribution | None:
    value = chosen[piece.setting] if piece.with_it is None else piece.with_it
    if value == piece.without:
        return None
    with_it = (
        whole if value == chosen[piece.setting] else runs.row({**chosen, piece.setting: value})
    )
    without = {**chosen, piece.setting: piece.without}
    alone = runs.row({**bare, piece.setting: value})
    return Contribution(
        alone=_gain(alone, none),
        last=_gain(with_it, runs.row(without)),
        same=_gain(with_it, runs.row(without, again=False)),
    )


def _gain(ours: ArmResult, theirs: ArmResult) -> AccuracyGain:
    return AccuracyGain.of(theirs.arm, ours.accuracies, theirs.accuracies)


def _text(
    entry: StudyEntry, found: Mapping[str, Contribution], whole: ArmResult, none: ArmResult
) -> str:
    privacy = whole.runs[0].plan.privacy
    said = (
        f"**{entry.setting}, {entry.track}.** With all parts "
        f"{table.format_percent(whole.accuracy)} %, with none "
        f"{table.format_percent(none.accuracy)} %; ε at "
        f"{format_terms(privacy.delta, privacy.adjacency)}. Points ± standard error, seed by seed."
    )
    headings = ["part", "alone", "last", "last, distance as it was"]
    rows = [
        [name, *(_points(gain) for gain in (added.alone, added.last, added.same))]
        for name, added in found.items()
    ]
    return f"{said}\n\n{table.format_markdown(headings, rows)}"


def _points(gain: AccuracyGain) -> str:
    told = "" if gain.verdict == "wins" else f", {gain.verdict}"
    return f"{gain.points:+.1f} ± {gain.standard_error:.1f}{told}"


def _line(study: Study, entry: StudyEntry, name: str, added: Contribution) -> dict[str, Any]:
    line: dict[str, Any] = {
        "study": study.name,
        "setting": entry.setting,
        "track": entry.track,
        "part": name,
    }
    for kind, gain in vars(added).items():
        line[f"{kind}_points"] = gain.points
        line[f"{kind}_standard_error"] = gain.standard_error
    return line
