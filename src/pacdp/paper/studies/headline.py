"""The headline study: what configurations that were tuned on public data reach.

Each line is one setting of the paper on one of two tracks that are never mixed. The search sees
only public data. Its configuration is then frozen and run with unused seeds, partitions and splits,
and once more with as many fresh ones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pacdp.experiments import RunResult
from pacdp.formatting import MISSING, format_min_median_max
from pacdp.paper.figures.headline import draw_headline
from pacdp.paper.studies import table
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.section import Section, StepCounter, WorkItem
from pacdp.paper.studies.study import Study, StudyEntry
from pacdp.paper.studies.summary import ArmResult
from pacdp.paper.studies.tuned_runs import run_tuned, tune_entry
from pacdp.privacy import Adjacency, Release, account
from pacdp.reporting.comparison import describe_terms, format_epsilons
from pacdp.stats import SampleStats
from pacdp.tuning import TunedConfiguration
from pacdp.tuning.search_space import format_point

# First seeds of the runs and of the fresh runs, far from those of the search.
FIRST_SEED, _FRESH_SEED = 100, 3000
ARMS = ("pac-dp", "fixed", "fedavg")


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadlineResult:
    """The results for one entry."""

    entry: StudyEntry
    configurations: dict[str, TunedConfiguration]
    arms: dict[str, ArmResult]
    """Runs of ``pac-dp``, ``fixed`` and ``fedavg``, and PAC-DP's ``fresh`` and ``skewed`` runs."""

    @property
    def main(self) -> ArmResult:
        """The runs of PAC-DP."""
        return self.arms["pac-dp"]


def split_headline(study: Study) -> list[WorkItem]:
    """List one item per line."""
    return [
        WorkItem(f"{entry.setting}, {entry.track}", len(ARMS) + 2, partial(_run_entry, entry))
        for entry in study.entries
    ]


def build_headline(study: Study, profile: str, results: Sequence[HeadlineResult]) -> Section:
    """Describe the results of all lines."""
    rows = [row for result in results for row in _list_csv_rows(study, result, profile)]
    bars = [
        {
            "label": result.entry.setting,
            "track": result.entry.track,
            "reached": result.main.accuracies,
            "references": {
                "the paper": result.entry.paper,
                "ceiling without privacy": result.arms["fedavg"].accuracy.mean,
                "before private data": result.main.before,
                "chance": result.main.runs[0].chance,
            },
        }
        for result in results
    ]
    return Section(study, _format_text(results), table.format_csv(rows), draw_headline(bars))


def _run_entry(entry: StudyEntry, store: ArtifactStore, counter: StepCounter) -> HeadlineResult:
    """Tune each method on public data, and run its configuration."""
    configurations, arms = {}, {}
    name = f"{entry.setting}, {entry.track}"
    for arm in ARMS:
        with counter.step(f"{name}: {arm}"):
            # Without noise seeds hardly differ.
            seeds = entry.search if arm != "fedavg" else 1
            configurations[arm] = tune_entry(entry, store, arm, seeds=seeds)
            arms[arm] = run_tuned(entry, configurations[arm], store, first=FIRST_SEED)
    run_ours = partial(run_tuned, entry, configurations["pac-dp"], store)
    with counter.step(f"{name}: fresh"):
        arms["fresh"] = run_ours(first=_FRESH_SEED)
    with counter.step(f"{name}: skewed"):
        if entry.skew is not None:
            skewed = {"partition": "dirichlet", "settings": {"alpha": entry.skew}}
            arms["skewed"] = run_ours(first=FIRST_SEED, updates={"data": skewed})
    return HeadlineResult(entry=entry, configurations=configurations, arms=arms)


_CAPTION = """ε at {terms}, certified for every client by its ledger, and the ε that the same \
noise certifies under replace-one. The two tracks are never mixed. On the *public* track, \
features or the initial model are learned from public records; the accuracy before any private \
record is read is given. On the *private-only* track nothing is learned from public records. On \
both, configurations were tuned on the proxy and then frozen. The ceiling uses the same features \
without clipping and noise, tuned in the same way; *fixed C* was tuned with the same search and \
seeds as PAC-DP. Mean ± standard deviation over runs."""


def _format_text(results: Sequence[HeadlineResult]) -> str:
    parts = [_CAPTION.format(terms=describe_terms(results[0].main.runs[0].plan))]
    for track in ("public", "private-only"):
        members = [result for result in results if result.entry.track == track]
        if members:
            parts += [f"### Track {track}", _format_table(members)]
    parts += ["### Tuned configurations and expected scores", _format_searches(results)]
    return "\n\n".join(parts)


def _format_table(results: Sequence[HeadlineResult]) -> str:
    records = []
    for result in results:
        entry, main, arms = result.entry, result.main, result.arms
        percent = {name: table.format_percent(arm.accuracy) for name, arm in arms.items()}
        verdict = "reached" if main.accuracy.mean >= entry.reach else "missed"
        before = MISSING if main.before is None else f"{100 * main.before:.1f}"
        replaced = sorted({epsilon for run in main.runs for epsilon in replace_one_epsilons(run)})
        record = {
            "setting": entry.setting,
            "PAC-DP tuned, %": f"**{percent['pac-dp']}**",
            "the paper, %": f"{100 * entry.paper:.1f}",
            "target, %": f"{100 * entry.reach:.1f}, {verdict}",
            "fresh seeds, %": percent["fresh"],
            "Dirichlet, %": percent.get("skewed", MISSING),
            "fixed C, same search, %": percent["fixed"],
            "before private data, %": before,
            "ceiling without privacy, %": percent["fedavg"],
            "runs": str(len(main.runs)),
            "certified ε": format_epsilons(main.runs, "epsilon_spent"),
            "ε under replace-one": format_min_median_max(replaced),
        }
        records.append(record.items())
    return table.format_records(records)


def replace_one_epsilons(run: RunResult) -> list[float]:
    """List the different ε that the noise of a run certifies under replace-one."""
    noise = dict.fromkeys(
        (charge.noise_multiplier, charge.each * client.participations)
        for client in run.plan.clients
        # Several kinds of releases would have to be composed.
        for (charge,) in [client.charges]
    )
    releases = [
        Release.clipped_sum(noise_multiplier=z, adjacency=Adjacency.REPLACE_ONE, count=count)
        for z, count in noise
    ]
    return [account([release], delta=run.plan.privacy.delta).epsilon for release in releases]


def _format_searches(results: Sequence[HeadlineResult]) -> str:
    records = []
    for result in results:
        for arm in ("pac-dp", "fixed"):
            tuned = result.configurations[arm]
            expected = tuned.expected
            stats = SampleStats(expected.mean, expected.deviation, len(expected.seeds))
            record = {
                "setting": result.entry.setting,
                "track": result.entry.track,
                "method": arm,
                "configuration": format_point(tuned.chosen),
                "proxy": tuned.proxy["name"],
                "expected on the proxy, %": table.format_percent(stats),
                "reached, %": table.format_percent(result.arms[arm].accuracy),
                "trainings": str(tuned.trainings),
            }
            records.append(record.items())
    return table.format_records(records, words=5)


def _list_csv_rows(
    study: Study, result: HeadlineResult, profile: str
) -> Iterator[dict[str, object]]:
    for name, arm in result.arms.items():
        for run in arm.runs:
            features = run.plan.representation
            yield {
                "study": study.name,
                "profile": profile,
                "setting": result.entry.setting,
                "track": result.entry.track,
                "runs": name,
                "method": run.plan.method,
                "seed": run.seed,
                "representation_seed": None if features is None else features.seed,
                "accuracy": run.accuracy,
                "before_private_data": (run.before_private_data or {}).get("accuracy"),
                "chance": run.chance,
                **table.epsilon_range(run, "epsilon_spent", name="epsilon_certified"),
                "delta": run.plan.privacy.delta,
                "adjacency": run.plan.privacy.adjacency,
                "rounds": run.rounds,
            }
