"""An output folder: curves and results that are there are reused, missing ones are made.

====================  ======================================================================
``curves/KEY.json``   F of a plan, with the matrix it was fitted on
``plans/KEY.json``    what a search on public data chose, and why
``runs/KEY.json``     the result of a run
``results.md``        the page: every study that is whole, the headline first
``results/``          its tables (Markdown, CSV) and figures (SVG, PNG)
``reports/``          a page for each study, to look at
``.locks/``           so that of several helpers one makes what all need
====================  ======================================================================
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

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
from pacdp.paper.studies.jobs import Job
from pacdp.paper.studies.reading import convert_to_per_release
from pacdp.tuning import TunedConfiguration, tune
from pacdp.tuning.evaluation import CandidateEvaluator


class ArtifactStore:
    """What has been made, by what it was made from."""

    def __init__(self, folder: Path, *, profile: str, resume: bool = False) -> None:
        self.folder = folder
        self.profile = profile
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--out {folder}: is a file, must be a folder")
        if folder.is_dir() and any(folder.iterdir()) and not resume:
            raise InputError(f"--out {folder}: is not empty, must be new (or use --resume)")
        mark = folder / "profile"
        if folder.is_dir() and any(folder.iterdir()) and not mark.is_file():
            raise InputError(f"--out {folder}: is not of this command, must be new")
        if mark.is_file():
            _refuse_other(folder, _marked(mark), profile)
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"--out {folder}: another run is at work there") from None
        mark.write_text(json.dumps(add_arithmetic_version({"profile": profile})) + "\n")
        for name in ("curves", "plans", "runs", "results", "reports", ".locks"):
            (folder / name).mkdir(exist_ok=True)

    def __getstate__(self) -> dict[str, Any]:
        """For helpers in other processes: the lock on the folder stays with who took it."""
        return {"folder": self.folder, "profile": self.profile}

    def curve(self, experiment: Experiment) -> Curve:
        """F for the plan of an experiment; it does not depend on budgets or on a hot start.

        One grid serves both readings: the noise of a release is all that training sees of them.
        """
        privacy = experiment.privacy.model_copy(
            update={"scope": "total", "accountant": None, "epsilon": 1.0}
        )
        plain = experiment.model_copy(
            update={"hot_start": None, "privacy": privacy, "profiles": {}}
        )
        proxy_task = _proxy_task(plain.model_dump_json())
        content = proxy_task.digest + plain.offline.model_dump_json()
        key = hashlib.sha256(content.encode()).hexdigest()[:12]
        path = self.folder / "curves" / f"{plain.name}-{key}.json"
        self._once(path, lambda: fit_curve(proxy_task, plain.offline).save(path))
        curve = Curve.load(path)
        if experiment.privacy.scope == "total":
            return curve
        releases = proxy_task.plan(1.0, 1.0, 0).clients[0].releases
        classic = experiment.privacy.accountant == "basic"
        return convert_to_per_release(curve, releases=releases, classic=classic)

    def plan(
        self,
        experiment: Experiment,
        method: str,
        *,
        seeds: int,
        sweeps: int,
        start: Mapping[str, Any] | None = None,
        only: Sequence[str] | None = None,
    ) -> TunedConfiguration:
        """What the search on public data chooses for an experiment and a method."""
        plain = experiment.model_copy(update={"profiles": {}})
        if not find_method(method).private:
            # Nothing it does depends on budgets, and without noise all weights are sizes.
            server = plain.server.model_copy(update={"weights": "size"})
            plain = plain.model_copy(update={"privacy": Privacy(), "server": server})
        content: list[Any] = [plain.model_dump(mode="json"), method, seeds, sweeps]
        content += [] if only is None else [dict(start or {}), list(only)]
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
        path = self.folder / "plans" / f"{plain.name}-{method}-{key}.json"
        search = partial(tune, plain, method=method, seeds=seeds, sweeps=sweeps)
        data = plain.data.model_dump_json()
        self._once(path, lambda: search(start=start, only=only, evaluator=_stage(data)).save(path))
        return TunedConfiguration.load(path)

    def result(self, job: Job) -> RunResult:
        """The result of a run."""
        path = self.folder / "runs" / f"{job.key}.json"
        self._once(path, lambda: self._run(job).save_file(path))
        return RunResult.load_file(path)

    def _run(self, job: Job) -> RunResult:
        read = _data(job.experiment.data, job.seed)
        prepared = prepare_run(job.experiment, method=job.method, seed=job.seed, read=read)
        return RunResult.of(prepared, simulate_run(prepared), profile=self.profile)

    def _once(self, path: Path, write: Callable[[], None]) -> None:
        """Let one process write a missing file; others that need it wait."""
        if path.is_file():
            return
        with exclusive_lock(self.folder / ".locks" / path.name):
            if not path.is_file():
                write()


def _marked(mark: Path) -> dict[str, Any]:
    """What a folder's mark says; before 0.2.0 it was just the profile's name."""
    text = mark.read_text().strip()
    try:
        content = json.loads(text)
    except ValueError:
        return {"profile": text}
    return content if isinstance(content, dict) else {"profile": text}


def _refuse_other(folder: Path, content: Mapping[str, Any], profile: str) -> None:
    """Refuse a folder of another profile or version, since tables would mix their numbers."""
    advice = "pacdp reproduce needs a new --out folder"
    refuse_other_arithmetic(f"--out {folder}", content, mark="profile", advice=advice)
    held = content.get("profile")
    if held != profile:
        raise InputError(f"--out {folder}: holds the profile {held}, not {profile}")


@lru_cache(maxsize=1)
def _stage(data: str) -> CandidateEvaluator:
    """Where plans for the same data are tried: what one search has scored the next need not."""
    return CandidateEvaluator(_data(Data.model_validate_json(data), 0))


@lru_cache(maxsize=8)
def _proxy_task(experiment: str) -> ProxyTask:
    """The public side of a training, made once: a proxy may take seconds."""
    made = Experiment.model_validate_json(experiment)
    return make_proxy_task(made, read=_data(made.data, 0))


def _data(settings: Data, seed: int) -> tuple[Dataset, Partition]:
    """Records that many runs share, read once, and who holds them."""
    dataset = _records(settings.model_copy(update=_DEALING).model_dump_json())
    return dataset, _dealt(dataset, settings.model_dump_json(), seed)


# What decides who holds which record, and nothing else.
_DEALING: dict[str, object] = {"partition": None, "clients": None, "settings": {}}


@lru_cache(maxsize=3)
def _records(settings: str) -> Dataset:
    return read_records(Data.model_validate_json(settings))


@lru_cache(maxsize=8)
def _dealt(dataset: Dataset, settings: str, seed: int) -> Partition:
    return partition_dataset(Data.model_validate_json(settings), dataset, seed=seed)
