"""The output folder of studies: existing curves, configurations and results are reused.

====================  ======================================================================
``curves/KEY.json``   F of a plan, with the matrix that it was fitted on
``plans/KEY.json``    a configuration that was tuned on public data
``runs/KEY.json``     the result of a run
``results.md``        the results page: every complete study, the headline first
``results/``          its tables (Markdown, CSV) and figures (SVG, PNG)
``reports/``          an HTML page for each study
``.locks/``           locks, so that only one of several processes makes a file
====================  ======================================================================
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from filelock import FileLock, Timeout

from pacdp.arithmetic import add_arithmetic_version, refuse_other_arithmetic
from pacdp.curve import Curve
from pacdp.data import Dataset, Partition
from pacdp.data.storage import exclusive_lock
from pacdp.errors import InputError
from pacdp.experiments import Experiment, RunResult, prepare_run
from pacdp.experiments.execute import simulate_run
from pacdp.experiments.experiment import Data
from pacdp.experiments.offline import make_proxy_task
from pacdp.experiments.prepare import partition_dataset, read_records
from pacdp.federation import Privacy
from pacdp.methods import find_method
from pacdp.offline import ProxyTask, fit_curve
from pacdp.paper.studies.jobs import Job, hash_text
from pacdp.paper.studies.reading import convert_to_per_release
from pacdp.paper.studies.study import update_sections
from pacdp.tuning import TunedConfiguration, tune
from pacdp.tuning.evaluation import CandidateEvaluator

T = TypeVar("T")


class _Recent(Generic[T]):
    """The most recent values, by the settings that they were made from."""

    def __init__(self, size: int) -> None:
        self._size, self._values = size, dict[str, T]()

    def get(self, key: str, make: Callable[[], T]) -> T:
        value = self._values.pop(key) if key in self._values else make()
        if len(self._values) == self._size:
            del self._values[next(iter(self._values))]
        self._values[key] = value
        return value


class ArtifactStore:
    """Makes what is missing in an output folder, and keeps the data of recent runs in memory."""

    def __init__(self, folder: Path, *, profile: str, resume: bool = False) -> None:
        used = folder.is_dir() and any(folder.iterdir())
        marker = folder / "profile"
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--out {folder}: is a file, must be a folder")
        if used and not resume:
            raise InputError(f"--out {folder}: is not empty, must be new (or use --resume)")
        if used and not marker.is_file():
            raise InputError(f"--out {folder}: is not of this command, must be new")
        if used:
            _refuse_other_folder(folder, marker, profile)
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"--out {folder}: another run is at work there") from None
        marker.write_text(json.dumps(add_arithmetic_version({"profile": profile})) + "\n")
        for name in ("curves", "plans", "runs", "results", "reports", ".locks"):
            (folder / name).mkdir(exist_ok=True)
        self.__setstate__({"folder": folder, "profile": profile})

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lock on the folder, which stays with the process that has acquired it."""
        return {"folder": self.folder, "profile": self.profile}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.folder: Path = state["folder"]
        self.profile: str = state["profile"]
        self._datasets = _Recent[Dataset](3)
        self._partitions = _Recent[Partition](8)
        self._proxy_tasks = _Recent[ProxyTask](8)
        self._evaluators = _Recent[CandidateEvaluator](1)

    def curve(self, experiment: Experiment) -> Curve:
        """Return F for an experiment; it depends neither on budgets nor on a warm start.

        One grid serves both readings of a budget, since training depends on it only through the
        noise of a release.
        """
        total = {"scope": "total", "accountant": None, "epsilon": 1.0}
        plain = update_sections(experiment, {"privacy": total})
        plain = plain.model_copy(update={"hot_start": None, "profiles": {}})
        proxy_task = self._proxy_tasks.get(
            plain.model_dump_json(),
            lambda: make_proxy_task(plain, read=self._read_data(plain.data, 0)),
        )
        key = hash_text(proxy_task.digest + plain.offline.model_dump_json())
        path = self.folder / "curves" / f"{plain.name}-{key}.json"
        self._write_once(path, lambda: fit_curve(proxy_task, plain.offline).save(path))
        curve = Curve.load(path)
        if experiment.privacy.scope == "total":
            return curve
        releases = proxy_task.plan(1.0, 1.0, 0).clients[0].releases
        classic = experiment.privacy.accountant == "basic"
        return convert_to_per_release(curve, releases=releases, classic=classic)

    def configuration(
        self,
        experiment: Experiment,
        method: str,
        *,
        seeds: int,
        sweeps: int,
        start: Mapping[str, Any] | None = None,
        only: Sequence[str] | None = None,
    ) -> TunedConfiguration:
        """Return the configuration that the search on public data chooses for a method."""
        plain = experiment.model_copy(update={"profiles": {}})
        if not find_method(method).private:
            # Without privacy nothing depends on budgets, and weights by noise are sizes.
            plain = update_sections(plain, {"server": {"weights": "size"}})
            plain = plain.model_copy(update={"privacy": Privacy()})
        content: list[Any] = [plain.model_dump(mode="json"), method, seeds, sweeps]
        content += [] if only is None else [dict(start or {}), list(only)]
        key = hash_text(json.dumps(content, sort_keys=True))
        path = self.folder / "plans" / f"{plain.name}-{method}-{key}.json"

        def write() -> None:
            # Searches on the same data share their scores.
            evaluator = self._evaluators.get(
                plain.data.model_dump_json(),
                lambda: CandidateEvaluator(self._read_data(plain.data, 0)),
            )
            options: dict[str, Any] = {"seeds": seeds, "sweeps": sweeps, "start": start}
            tune(plain, method=method, only=only, evaluator=evaluator, **options).save(path)

        self._write_once(path, write)
        return TunedConfiguration.load(path)

    def result(self, job: Job) -> RunResult:
        """Return the result of a run."""
        path = self.folder / "runs" / f"{job.key}.json"
        self._write_once(path, lambda: self._run(job).save_file(path))
        return RunResult.load_file(path)

    def _run(self, job: Job) -> RunResult:
        read = self._read_data(job.experiment.data, job.seed)
        prepared = prepare_run(job.experiment, method=job.method, seed=job.seed, read=read)
        return RunResult.of(prepared, simulate_run(prepared), profile=self.profile)

    def _read_data(self, settings: Data, seed: int) -> tuple[Dataset, Partition]:
        """Load a data set once for all runs that use it, and split it among the clients."""
        unsplit = settings.model_copy(update={"partition": None, "clients": None, "settings": {}})
        dataset = self._datasets.get(unsplit.model_dump_json(), lambda: read_records(unsplit))
        partition = self._partitions.get(
            f"{seed} {settings.model_dump_json()}",
            lambda: partition_dataset(settings, dataset, seed=seed),
        )
        return dataset, partition

    def _write_once(self, path: Path, write: Callable[[], None]) -> None:
        """Let one process write a missing file, while others that need it wait."""
        if path.is_file():
            return
        with exclusive_lock(self.folder / ".locks" / path.name):
            if not path.is_file():
                write()


def _refuse_other_folder(folder: Path, marker: Path, profile: str) -> None:
    """Refuse a folder of another profile or version, since tables would mix their numbers."""
    text = marker.read_text().strip()
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        # Before 0.2.0 the file held nothing but the name of the profile.
        content = {"profile": text}
    advice = "pacdp reproduce needs a new --out folder"
    refuse_other_arithmetic(f"--out {folder}", content, mark="profile", advice=advice)
    if content.get("profile") != profile:
        raise InputError(
            f"--out {folder}: holds the profile {content.get('profile')}, not {profile}"
        )
