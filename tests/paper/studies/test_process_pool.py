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
from pacdp.paper.studies.section import WorkItem, quiet
from pacdp.paper.studies.study import read_study

SCRIPT = """
from functools import partial
from pathlib import Path
import sys

from pacdp.paper.studies.process_pool import run_in_parallel
from pacdp.paper.studies.section import WorkItem, quiet
from pacdp.paper.studies.artifact_store import ArtifactStore
from tests.paper.studies.test_process_pool import forever

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    portions = [WorkItem(name, 1, partial(forever, name)) for name in "ab"]
    run_in_parallel(portions, ArtifactStore(folder, profile="smoke"), jobs=2, observe=quiet)
"""


def forever(name: str, store: ArtifactStore, observe: object) -> None:
    (store.folder / f"{name}.pid").write_text(str(os.getpid()))
    time.sleep(600)
    (store.folder / f"{name}.ended").touch()


def refuse(store: ArtifactStore, observe: object) -> None:
    # Not before the other has begun.
    wait_for(lambda: begun(store.folder / "a.pid"))
    raise InputError("one line")


def dies(store: ArtifactStore, observe: object) -> None:
    os._exit(9)


def note(name: str, store: ArtifactStore, observe: object) -> None:
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


def test_every_portion_is_made_by_another_process_and_told(tmp_path):
    store, told = ArtifactStore(tmp_path / "out", profile="smoke"), []
    portions = [WorkItem(name, 2, partial(note, name)) for name in "abcde"]
    run_in_parallel(portions, store, jobs=2, observe=lambda *one: told.append(one))
    assert sorted(told) == [(name, 2) for name in "abcde"]
    makers = {int((store.folder / name).read_text()) for name in "abcde"}
    assert os.getpid() not in makers
    assert len(makers) <= 2


def test_a_refusal_stops_the_others(tmp_path):
    store = ArtifactStore(tmp_path / "out", profile="smoke")
    portions = [WorkItem("a", 1, partial(forever, "a")), WorkItem("b", 1, refuse)]
    with pytest.raises(InputError, match="one line"):
        run_in_parallel(portions, store, jobs=2, observe=quiet)
    assert gone(store.folder / "a.pid")
    assert not (store.folder / "a.ended").exists()


def test_a_study_is_made_ahead_and_then_only_read(tmp_path):
    study, told = read_study("heart", profile="smoke"), []
    store = ArtifactStore(tmp_path / "out", profile="smoke")
    reproduce([study], store, jobs=2, observe=lambda words, steps: told.append(steps))
    assert sum(told) == sum(one.steps for one in list_work(study))
    # Whoever reads told nobody: all of it was made, and told, by helpers.
    assert len(told) == len(list_work(study))
    assert (store.folder / "results" / "heart.md").is_file()


def test_a_helper_that_dies_is_no_silence(tmp_path):
    store = ArtifactStore(tmp_path / "out", profile="smoke")
    with pytest.raises(TrainingError, match="a helper was ended from outside"):
        run_in_parallel([WorkItem("a", 1, dies)], store, jobs=1, observe=quiet)


def test_helpers_end_with_who_waits_for_them(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder, root = tmp_path / "out", Path(__file__).parents[3]
    waiting = subprocess.Popen(
        [sys.executable, script, folder], env={**os.environ, "PYTHONPATH": str(root)}
    )
    marks = [folder / f"{name}.pid" for name in "ab"]
    try:
        wait_for(lambda: all(map(begun, marks)))
    finally:
        os.kill(waiting.pid, signal.SIGKILL)
        waiting.wait()
    wait_for(lambda: all(map(gone, marks)))
