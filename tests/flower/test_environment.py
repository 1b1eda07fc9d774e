import sys
import threading
from pathlib import Path

import pytest

from pacdp.errors import InputError
from pacdp.flower import environment


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path / "cache" / "flower"))
    return tmp_path / "cache" / "flower"


def write_environment(folder, version="1.41.0"):
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    for name in ("flwr", "flower-superlink", "flower-supernode", "flower-superexec"):
        (folder / "bin" / name).touch()
    (folder / "bin" / "flwr-clientapp").touch()
    packages = folder / "lib" / "python3.11" / "site-packages"
    (packages / f"flwr-{version}.dist-info").mkdir(parents=True)


@pytest.fixture
def commands(monkeypatch):
    """Replace the commands that make an environment by one that writes its files."""
    done = []

    def run(folder: Path, *command: str) -> None:
        done.append(command)
        if "pip" in command:
            write_environment(folder)

    monkeypatch.setattr(environment, "_run", run)
    return done


def test_without_the_variable_it_is_in_the_cache_of_the_user(monkeypatch):
    monkeypatch.delenv(environment.VARIABLE, raising=False)
    assert environment.locate_environment().name == "flower-1.41"


def test_an_environment_with_flower_is_used_as_it_is(folder, commands):
    write_environment(folder)
    assert environment.ensure_environment() == folder
    assert commands == []


def test_it_is_made_once_with_the_tested_versions(folder, commands):
    threads = [threading.Thread(target=environment.ensure_environment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    venv, pip = commands
    assert venv == (sys.executable, "-m", "venv", str(folder))
    assert pip[-1] == "flwr==1.41.*"
    assert "flwr==1.41.0\n" in Path(pip[pip.index("-c") + 1]).read_text()
    assert environment.is_ready(folder)


def test_a_half_made_environment_is_made_anew(folder, commands):
    write_environment(folder)
    (folder / "pacdp-unfinished").touch()
    (folder / "remains").touch()
    assert not environment.is_ready(folder)
    assert environment.ensure_environment() == folder
    assert len(commands) == 2
    assert not (folder / "remains").exists()


def test_a_folder_with_something_else_is_left_alone(folder, commands):
    write_environment(folder, version="1.42.0")
    with pytest.raises(
        InputError, match=r"is not an environment with flwr 1\.41; set PACDP_FLOWER"
    ):
        environment.ensure_environment()
    assert commands == []
    assert (folder / "bin" / "flwr").exists()


def test_a_failure_is_one_line_and_leaves_nothing_that_is_used(folder, monkeypatch):
    script = "import sys; sys.exit('notice\\nERROR: No matching distribution found\\nhint')"
    make = environment._run
    monkeypatch.setattr(
        environment, "_run", lambda folder, *command: make(folder, sys.executable, "-c", script)
    )
    with pytest.raises(InputError) as caught:
        environment.ensure_environment()
    message = (
        f"{folder}: Flower's environment cannot be created: ERROR: No matching distribution found"
    )
    assert str(caught.value) == message
    assert not environment.is_ready(folder)


def test_a_place_that_cannot_be_written_is_said_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path / "file" / "flower"))
    with pytest.raises(InputError, match=r"cannot be created: (File exists|Not a directory)"):
        environment.ensure_environment()
