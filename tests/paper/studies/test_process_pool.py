"""Helpers: what happens to them when something goes wrong."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from pacdp.errors import InputError, TrainingError
from pacdp.paper.studies.artifact_store import ArtifactStore
from pacdp.paper.studies.process_pool import run_in_parallel
from pacdp.paper.studies.reproduce import list_work, reproduce
from pacdp.paper.studies.section import StepCounter, WorkItem
from pacdp.paper.studies.study import read_study

SCRIPT = """
from functools import partial
from pathlib import Path
import sys

from pacdp.paper.studies.process_pool import run_in_parallel
from pacdp.paper.studies.section import StepCounter, WorkItem
from pacdp.paper.studies.artifact_store import ArtifactStore
from tests.paper.studies.test_process_pool import forever

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    items = [WorkItem(name, 1, partial(forever, name)) for name in "ab"]
    store = ArtifactStore(folder, profile="smoke")
    run_in_parallel(items, store, jobs=2, counter=StepCounter())
"""


def forever(name: str, store: ArtifactStore, counter: object) -> None:
    (store.folder / f"{name}.pid").write_text(str(os.getpid()))
    time.sleep(600)
    (store.folder / f"{name}.ended").touch()


def refuse(store: ArtifactStore, counter: object) -> None:
    # Not before the other has begun.
    wait_for(lambda: begun(store.folder / "a.pid"))
    raise InputError("one line")


def dies(store: ArtifactStore, counter: object) -> None:
    os._exit(9)


def note(name: str, store: ArtifactStore, counter: object) -> None:
    (store.folder / name).write_text(str(os.getpid()))


def wait_for(true):
    for _ in range(1200):
        if true():
            return
        time.sleep(0.1)
    raise AssertionError("nothing happened")


def begun(mark):
    return mark.exists() and mark.read_text()


def gone(mark):
    """Whether a helper has ended; one that nobody has asked after yet may still be listed."""
    state = Path("/proc") / mark.read_text() / "stat"
    try:
        return state.read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_every_item_is_run_by_another_process_and_reported(tmp_path):
    store, reports = ArtifactStore(tmp_path / "out", profile="smoke"), []
    items = [WorkItem(name, 2, partial(note, name)) for name in "abcde"]
    counter = StepCounter(10, lambda *report: reports.append(report))
    run_in_parallel(items, store, jobs=2, counter=counter)
    assert sorted(report[3] for report in reports) == list("abcde")
    assert [report[1:3] for report in reports] == [(done, 10) for done in (2, 4, 6, 8, 10)]
    makers = {int((store.folder / name).read_text()) for name in "abcde"}
    assert os.getpid() not in makers
    assert len(makers) <= 2


def test_a_refusal_stops_the_others(tmp_path):
    store = ArtifactStore(tmp_path / "out", profile="smoke")
    items = [WorkItem("a", 1, partial(forever, "a")), WorkItem("b", 1, refuse)]
    with pytest.raises(InputError, match="one line"):
        run_in_parallel(items, store, jobs=2, counter=StepCounter())
    assert gone(store.folder / "a.pid")
    assert not (store.folder / "a.ended").exists()


def test_a_study_is_made_ahead_and_then_only_read(tmp_path):
    study, reports = read_study("heart", profile="smoke"), []
    store = ArtifactStore(tmp_path / "out", profile="smoke")
    reproduce([study], store, jobs=2, progress=lambda *report: reports.append(report))
    steps = sum(item.steps for item in list_work(study))
    assert reports[-1][1:3] == (steps, steps)
    # Reading what the workers have computed is not reported again.
    assert len(reports) == len(list_work(study))
    assert (store.folder / "results" / "heart.md").is_file()


def test_a_helper_that_dies_is_no_silence(tmp_path):
    store = ArtifactStore(tmp_path / "out", profile="smoke")
    with pytest.raises(TrainingError, match="a worker process was killed"):
        run_in_parallel([WorkItem("a", 1, dies)], store, jobs=1, counter=StepCounter())


def test_helpers_end_with_who_waits_for_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder, root = tmp_path / "out", Path(__file__).parents[3]
    waiting = subprocess.Popen(
        [sys.executable, script, folder],
        env={**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"},
    )
    marks = [folder / f"{name}.pid" for name in "ab"]
    try:
        wait_for(lambda: all(map(begun, marks)))
    finally:
        os.kill(waiting.pid, signal.SIGKILL)
        waiting.wait()
    wait_for(lambda: all(map(gone, marks)))
