"""The virtual environment of Flower.

Flower and pacdp require different versions of the same libraries, so Flower's programs run in a
separate environment: the one that the variable ``PACDP_FLOWER_ENV`` names, or one in the user's
cache. It is created when a command first needs it.
"""

import os
import shutil
import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from pacdp.errors import InputError

VARIABLE = "PACDP_FLOWER_ENV"
VERSION = "1.41"
_PROGRAMS = ("flwr", "flower-superlink", "flower-supernode", "flower-superexec", "flwr-clientapp")
# Exists while an environment is being created; an environment that contains it is never used.
_UNFINISHED = "pacdp-unfinished"


def locate_environment() -> Path:
    """Return the path of Flower's environment, which need not exist."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    return user_cache_path("pacdp") / f"flower-{VERSION}"


def is_ready(environment: Path) -> bool:
    """Whether an environment is complete and contains the right version of Flower.

    >>> is_ready(Path("nowhere"))
    False
    """
    return (
        not (environment / _UNFINISHED).exists()
        and all((environment / "bin" / name).exists() for name in _PROGRAMS)
        and any(environment.glob(f"lib/python*/site-packages/flwr-{VERSION}.*.dist-info"))
    )


def ensure_environment() -> Path:
    """Return the path of Flower's environment, and create it if it does not exist.

    Raises InputError if it cannot be created. Safe to call from several processes at once.
    """
    environment = locate_environment()
    if is_ready(environment):
        return environment
    try:
        environment.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(environment.with_name(f".{environment.name}.lock")):
            if not is_ready(environment):
                _create(environment)
    except OSError as error:
        raise InputError(
            f"{environment}: Flower's environment cannot be created: {error.strerror or error}"
        ) from None
    return environment


def _create(environment: Path) -> None:
    marker = environment / _UNFINISHED
    if marker.exists():
        shutil.rmtree(environment)
    elif environment.is_dir() and any(environment.iterdir()):
        raise InputError(
            f"{environment}: is not an environment with flwr {VERSION};"
            f" set {VARIABLE} to one, or to a folder that does not exist"
        )
    environment.mkdir(exist_ok=True)
    marker.touch()
    _run(environment, sys.executable, "-m", "venv", str(environment))
    with as_file(files("pacdp.flower") / "constraints-flower.txt") as constraints:
        _run(
            environment,
            *(str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"),
            *("--disable-pip-version-check", "-c", str(constraints), f"flwr=={VERSION}.*"),
        )
    marker.unlink()


def _run(environment: Path, *command: str) -> None:
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no message"]
        reason = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise InputError(f"{environment}: Flower's environment cannot be created: {reason}")


if __name__ == "__main__":
    try:
        ensure_environment()
    except InputError as error:
        sys.exit(str(error))
