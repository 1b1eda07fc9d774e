"""Runs of an entry with a configuration that was tuned on public data."""

from collections.abc import Mapping
from typing import Any

from pacdp.experiments.experiment import merge_settings
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.jobs import Job
from pacdp.paper.studies.study import StudyEntry, load_study_experiment, update_sections
from pacdp.paper.studies.summary import ArmResult
from pacdp.tuning import TunedConfiguration, apply_configuration


def tune_entry(
    entry: StudyEntry, store: ArtifactStore, method: str = "pac-dp", **options: Any
) -> TunedConfiguration:
    """Return the configuration that the search of an entry, or one with other options, chooses."""
    base = load_study_experiment(entry.experiment, entry.changes, profile=store.profile)
    options = {"seeds": entry.search, "sweeps": entry.sweeps, **options}
    return store.configuration(base, method, **options)


def run_tuned(
    entry: StudyEntry,
    tuned: TunedConfiguration,
    store: ArtifactStore,
    *,
    first: int,
    updates: Mapping[str, Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ArmResult:
    """Run a configuration with every pretraining and with every seed from ``first`` on.

    ``updates`` are made to the configured experiment, ``settings`` to its method.
    """
    runs = []
    for pretraining in range(entry.pretrainings):
        for seed in range(first, first + entry.seeds):
            changes = merge_settings(entry.changes, {"data": entry.dealt})
            if entry.split:
                changes = merge_settings(changes, {"data": {"options": {"split": seed}}})
            if "representation" in changes and entry.pretrainings > 1:
                changes = merge_settings(changes, {"representation": {"seed": pretraining}})
            base = load_study_experiment(entry.experiment, changes, profile=store.profile)
            experiment = update_sections(apply_configuration(base, tuned), updates or {})
            method = experiment.build_method(tuned.method, settings or {})
            runs.append(store.result(Job(experiment, method, seed)))
    return ArmResult(tuned.method, "certified", runs)
