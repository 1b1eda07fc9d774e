"""The headline: what a plan that was chosen on public data reaches under certified budgets.

Each line is one setting of the paper on one of two tracks that are never mixed. The search sees
public data alone; then the plan is frozen, and run on seeds, partitions and splits that nobody has
looked at, and on as many fresh ones again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pacdp.experiments import Experiment, RunResult
from pacdp.experiments.experiment import merge_settings
from pacdp.experiments.results import collect_epsilons
from pacdp.formatting import MISSING, format_min_median_max, format_terms
from pacdp.paper.figures.headline import draw_headline
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.jobs import Job
from pacdp.paper.studies.section import Observer, Section, WorkItem
from pacdp.paper.studies.study import Study, StudyEntry, load_study_experiment
from pacdp.paper.studies.summary import ArmResult
from pacdp.privacy import Adjacency, Release, account
from pacdp.stats import SampleStats
from pacdp.tuning import TunedConfiguration, apply_configuration
from pacdp.tuning.search_space import format_point

# Seeds of the runs, far from those of the search, and of the fresh ones.
FIRST, _FRESH = 100, 3000
ARMS = ("pac-dp", "fixed", "fedavg")


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadlineResult:
    """What was found for one entry."""

    entry: StudyEntry
    plans: dict[str, TunedConfiguration]
    rows: dict[str, ArmResult]
    """Runs by arm: ``pac-dp``, ``fixed``, ``fedavg``; and PAC-DP's ``fresh`` and ``skewed``."""

    @property
    def reached(self) -> bool:
        """Whether the mean is as high as was asked for."""
        return self.rows["pac-dp"].accuracy.mean >= self.entry.reach


def split_headline(study: Study) -> list[WorkItem]:
    """Each line is one."""
    return [
        WorkItem(f"{entry.setting}, {entry.track}", len(ARMS) + 2, partial(_line, entry))
        for entry in study.entries
    ]


def build_headline(study: Study, store: ArtifactStore, observe: Observer) -> Section:
    """Choose each plan on public data, run it, and tell what was found."""
    found = [_line(entry, store, observe) for entry in study.entries]
    rows = [line for one in found for line in _csv(study, one, store.profile)]
    return Section(study, _text(found), table.format_csv(rows), draw_headline(_bars(found)))


def _line(entry: StudyEntry, store: ArtifactStore, observe: Observer) -> HeadlineResult:
    plans, rows = {}, {}
    for arm in ARMS:
        words = f"{entry.setting}, {entry.track}: {arm}"
        observe(words, 0)
        base = load_study_experiment(entry.experiment, entry.changes, profile=store.profile)
        # Without noise one seed tells as much as many.
        seeds = entry.search if arm != "fedavg" else 1
        plans[arm] = store.plan(base, arm, seeds=seeds, sweeps=entry.sweeps)
        rows[arm] = _row(entry, plans[arm], store, first=FIRST)
        observe(words, 1)
    for name, first, skew in (("fresh", _FRESH, None), ("skewed", FIRST, entry.skew)):
        observe(f"{entry.setting}, {entry.track}: {name}", 0)
        if name == "fresh" or skew is not None:
            rows[name] = _row(entry, plans["pac-dp"], store, first=first, skew=skew)
        observe(f"{entry.setting}, {entry.track}: {name}", 1)
    return HeadlineResult(entry=entry, plans=plans, rows=rows)


def _row(
    entry: StudyEntry,
    plan: TunedConfiguration,
    store: ArtifactStore,
    *,
    first: int,
    skew: float | None = None,
) -> ArmResult:
    """Every run of one arm of an entry."""
    runs = [
        store.result(Job(experiment, experiment.build_method(plan.method), seed))
        for experiment, seed in expand_runs(entry, plan, store.profile, first=first, skew=skew)
    ]
    return ArmResult(plan.method, "certified", runs)


def expand_runs(
    entry: StudyEntry, plan: TunedConfiguration, profile: str, *, first: int, skew: float | None
) -> Iterator[tuple[Experiment, int]]:
    """Experiments and seeds: representations outside, so that each is made once."""
    for pretraining in range(entry.pretrainings):
        for seed in range(first, first + entry.seeds):
            changes = entry.changes
            if entry.split:
                changes = merge_settings(changes, {"data": {"options": {"split": seed}}})
            if "representation" in changes and entry.pretrainings > 1:
                changes = merge_settings(changes, {"representation": {"seed": pretraining}})
            base = load_study_experiment(entry.experiment, changes, profile=profile)
            made = apply_configuration(base, plan)
            if skew is not None:
                data = made.data.model_copy(
                    update={"partition": "dirichlet", "settings": {"alpha": skew}}
                )
                made = made.model_copy(update={"data": data})
            yield made, seed


_WORDS = """ε at {terms}, certified for every client by its ledger; beside it what the same noise \
certifies under replace-one. Two tracks, never mixed: *public*, where public records train what \
the model sees, with the accuracy before any private record was read; *private-only*, where what \
the model sees owes nothing to public records. Plans were chosen on the proxy in both, and then \
frozen. The ceiling \
is the same representation without clipping or noise, searched in the same way; *fixed C* had the \
same search with the same seeds as PAC-DP. Mean ± standard deviation over runs."""


def _text(found: Sequence[HeadlineResult]) -> str:
    privacy = found[0].rows["pac-dp"].runs[0].plan.privacy
    parts = [_WORDS.format(terms=format_terms(privacy.delta, privacy.adjacency))]
    for track in ("public", "private-only"):
        own = [line for line in found if line.entry.track == track]
        if own:
            parts += [f"### Track {track}", _table(own)]
    parts += ["### What the search saw, chose and expected", _searches(found)]
    return "\n\n".join(parts)


def _table(found: Sequence[HeadlineResult]) -> str:
    headings = ["setting", "PAC-DP tuned, %", "the paper, %", "to reach, %", "fresh seeds, %"]
    headings += ["Dirichlet, %", "fixed C, same search, %", "before private data, %"]
    headings += ["ceiling without privacy, %", "runs", "certified ε", "ε by replace-one"]
    rows = []
    for line in found:
        main = line.rows["pac-dp"]
        skewed = line.rows.get("skewed")
        rows.append(
            [
                line.entry.setting,
                f"**{_percent(main)}**",
                f"{100 * line.entry.paper:.1f}",
                f"{100 * line.entry.reach:.1f}, {'reached' if line.reached else 'missed'}",
                _percent(line.rows["fresh"]),
                MISSING if skewed is None else _percent(skewed),
                _percent(line.rows["fixed"]),
                MISSING if main.before is None else f"{100 * main.before:.1f}",
                _percent(line.rows["fedavg"]),
                str(len(main.runs)),
                format_min_median_max(main.epsilons("epsilon_spent")),
                format_min_median_max(
                    sorted({e for run in main.runs for e in replace_one_epsilons(run)})
                ),
            ]
        )
    return table.format_markdown(headings, rows)


def replace_one_epsilons(run: RunResult) -> list[float]:
    """What the noise of a run certifies under replace-one: ε of each client."""
    plan = run.plan
    found = {}
    for client in plan.clients:
        (charge,) = client.charges
        releases = charge.each * client.participations
        key = (charge.noise_multiplier, releases)
        if key not in found:
            made = Release.clipped_sum(
                noise_multiplier=charge.noise_multiplier,
                adjacency=Adjacency.REPLACE_ONE,
                count=releases,
            )
            found[key] = account([made], delta=plan.privacy.delta).epsilon
    return list(found.values())


def _searches(found: Sequence[HeadlineResult]) -> str:
    headings = ["setting", "track", "method", "chosen", "judged by", "expected there, %"]
    headings += ["reached, %", "trainings"]
    rows = []
    for line in found:
        for arm in ("pac-dp", "fixed"):
            plan = line.plans[arm]
            expected = plan.expected
            stats = SampleStats(expected.mean, expected.deviation, len(expected.seeds))
            rows.append(
                [
                    *(line.entry.setting, line.entry.track, arm, format_point(plan.chosen)),
                    plan.proxy["name"],
                    table.format_percent(stats),
                    _percent(line.rows[arm]),
                    str(plan.trainings),
                ]
            )
    return table.format_markdown(headings, rows, words=5)


def _percent(row: ArmResult) -> str:
    return table.format_percent(row.accuracy)


def _bars(found: Sequence[HeadlineResult]) -> list[dict[str, object]]:
    """What the figure draws of each line."""
    return [
        {
            "label": line.entry.setting,
            "track": line.entry.track,
            "reached": line.rows["pac-dp"].accuracies,
            "paper": line.entry.paper,
            "ceiling": line.rows["fedavg"].accuracy.mean,
            "before": line.rows["pac-dp"].before,
            "chance": line.rows["pac-dp"].runs[0].chance,
        }
        for line in found
    ]


def _csv(study: Study, line: HeadlineResult, profile: str) -> Iterator[dict[str, object]]:
    for name, row in line.rows.items():
        for run in row.runs:
            spent = collect_epsilons([run], "epsilon_spent")
            yield {
                "study": study.name,
                "profile": profile,
                "setting": line.entry.setting,
                "track": line.entry.track,
                "runs": name,
                "method": run.plan.method,
                "seed": run.seed,
                "representation_seed": run.plan.representation.seed
                if run.plan.representation
                else None,
                "accuracy": run.accuracy,
                "before_private_data": (run.before_private_data or {}).get("accuracy"),
                "chance": run.chance,
                "epsilon_certified_min": min(spent, default=None),
                "epsilon_certified_max": max(spent, default=None),
                "delta": run.plan.privacy.delta,
                "adjacency": run.plan.privacy.adjacency,
                "rounds": run.rounds,
            }
