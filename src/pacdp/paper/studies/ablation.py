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
from pacdp.paper.figures.gains import gains_figure
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import Shelf
from pacdp.paper.studies.headline import FIRST, runs_of
from pacdp.paper.studies.jobs import Job
from pacdp.paper.studies.section import Observer, Part, Portion
from pacdp.paper.studies.study import Entry, Study, experiment_of
from pacdp.paper.studies.summary import Gain, Row
from pacdp.tuning.search_space import point_to_changes

Point = Mapping[str, Any]


@dataclass(frozen=True)
class Piece:
    """A part of a plan: the setting it is, what it is without, and what with if not the plan's."""

    setting: str
    without: Any
    with_it: Any = None


PIECES = {
    "few dimensions": Piece("dimension", "all"),
    "directions scaled": Piece("whitening", 0.0),
    "full batches": Piece("batch", 64),
    "few rounds": Piece("rounds", 40),
    "no intercept": Piece("bias", True),
    "F(ε), not one C": Piece("F", False, True),
    "λ(t)": Piece("schedule", "none", "cosine"),
    "weights": Piece("weights", "size"),
    "hot start": Piece("hot start", "none", 0.01),
    "averaging": Piece("averaging", 0.0, 0.5),
}


def ablation_portions(study: Study) -> list[Portion]:
    """Each entry is one."""
    return [
        Portion(f"{study.name}: {entry.setting}", 2 + 2 * len(PIECES), partial(_added, entry))
        for entry in study.entries
    ]


@dataclass(frozen=True)
class Added:
    """What a part adds, in points."""

    alone: Gain
    last: Gain
    same: Gain
    """Last, at the distance of the plan."""


class _Entry:
    """The runs of one entry, by the point they were planned at."""

    def __init__(self, entry: Entry, shelf: Shelf) -> None:
        # What differs between representations is not asked here: one is enough.
        self._entry = entry.model_copy(update={"pretrainings": 1})
        self._shelf = shelf
        self._base = experiment_of(entry.experiment, entry.changes, profile=shelf.profile)
        self.plan = shelf.plan(self._base, "pac-dp", seeds=entry.search, sweeps=entry.sweeps)

    @property
    def most(self) -> int:
        """As many directions as there are."""
        tried = next(step["tried"] for step in self.plan.why if step["setting"] == "dimension")
        return max(one["value"] for one in tried)

    def row(self, point: Point, *, again: bool = True) -> Row:
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
            for experiment, seed in runs_of(
                self._entry, tuned, self._shelf.profile, first=FIRST, skew=None
            )
        ]
        return Row("pac-dp", "certified", runs)


def ablation(study: Study, shelf: Shelf, observe: Observer) -> Part:
    """Put each part in alone and take it out last, and tell what that does."""
    texts, lines, panels = [], [], {}
    for entry in study.entries:
        found, whole, none = _added(entry, shelf, observe)
        texts.append(_text(entry, found, whole, none))
        lines += [_line(study, entry, name, added) for name, added in found.items()]
        panels[f"{entry.setting}, {entry.track}"] = {
            name: {"alone": added.alone, "last": added.last, "last, distance as it was": added.same}
            for name, added in found.items()
        }
    figure = gains_figure(panels)
    return Part(study, "\n\n".join(texts), table.csv_lines(lines), figure)


def _added(entry: Entry, shelf: Shelf, observe: Observer) -> tuple[dict[str, Added], Row, Row]:
    """What each part adds, and the rows of the plan with all of them and with none."""
    runs = _Entry(entry, shelf)
    chosen: dict[str, Any] = {**runs.plan.chosen, "F": True}
    pieces = {
        name: replace(piece, without=runs.most) if piece.setting == "dimension" else piece
        for name, piece in PIECES.items()
        if piece.setting in chosen
    }
    bare = {**chosen, **{piece.setting: piece.without for piece in pieces.values()}}
    observe(f"{entry.setting}: all and none", 0)
    whole, none = runs.row(chosen, again=False), runs.row(bare)
    observe(f"{entry.setting}: all and none", 2)
    found: dict[str, Added] = {}
    for name in PIECES:
        words = f"{entry.setting}: {name}"
        observe(words, 0)
        if name in pieces:
            added = _one(runs, chosen, bare, pieces[name], whole, none)
            found |= {} if added is None else {name: added}
        observe(words, 2)
    return found, whole, none


def _one(
    runs: _Entry, chosen: Point, bare: Point, piece: Piece, whole: Row, none: Row
) -> Added | None:
    value = chosen[piece.setting] if piece.with_it is None else piece.with_it
    if value == piece.without:
        return None
    with_it = (
        whole if value == chosen[piece.setting] else runs.row({**chosen, piece.setting: value})
    )
    without = {**chosen, piece.setting: piece.without}
    alone = runs.row({**bare, piece.setting: value})
    return Added(
        alone=_gain(alone, none),
        last=_gain(with_it, runs.row(without)),
        same=_gain(with_it, runs.row(without, again=False)),
    )


def _gain(ours: Row, theirs: Row) -> Gain:
    return Gain.of(theirs.arm, ours.accuracies, theirs.accuracies)


def _text(entry: Entry, found: Mapping[str, Added], whole: Row, none: Row) -> str:
    privacy = whole.runs[0].plan.privacy
    said = (
        f"**{entry.setting}, {entry.track}.** With all parts "
        f"{table.percent(whole.accuracy)} %, with none "
        f"{table.percent(none.accuracy)} %; ε at "
        f"{format_terms(privacy.delta, privacy.adjacency)}. Points ± standard error, seed by seed."
    )
    headings = ["part", "alone", "last", "last, distance as it was"]
    rows = [
        [name, *(_points(gain) for gain in (added.alone, added.last, added.same))]
        for name, added in found.items()
    ]
    return f"{said}\n\n{table.markdown(headings, rows)}"


def _points(gain: Gain) -> str:
    told = "" if gain.verdict == "wins" else f", {gain.verdict}"
    return f"{gain.points:+.1f} ± {gain.standard_error:.1f}{told}"


def _line(study: Study, entry: Entry, name: str, added: Added) -> dict[str, Any]:
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
