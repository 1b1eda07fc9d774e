"""The command as a user types it, in a process of its own.

Importing what most commands need takes far longer than what they do in these tests. ``run``
therefore forks each process from one that has imported it already; ``start`` starts an interpreter.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "pacdp"
TIMEOUT = 900


def start(*arguments, code=0, **settings):
    """Run the installed command in a new interpreter."""
    process = subprocess.run(
        [COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        **settings,
    )
    assert process.returncode == code, process.stderr
    return process


def run(*arguments, code=0, env=None, cwd=None):
    """Run the command's entry point in a process that starts with the libraries imported."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["pacdp.api", "pacdp.cli", "pacdp.reporting", __name__])
    argv = [str(COMMAND), *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        environment, cwd = dict(env or os.environ), cwd or Path.cwd()
        child = processes.Process(target=_enter, args=(argv, environment, cwd, *files))
        child.start()
        child.join(TIMEOUT)
        if child.is_alive():
            child.kill()
            pytest.fail(f"{argv} did not end")
        process = subprocess.CompletedProcess(
            argv, child.exitcode, *(file.read_text(encoding="utf-8") for file in files)
        )
    assert process.returncode == code, process.stderr
    return process


def _enter(argv, environment, cwd, *files):
    for descriptor, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = argv
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    from pacdp.cli import main

    sys.exit(main())


def refused(*arguments, call=run, **settings):
    """One line on standard error, nothing on standard output."""
    process = call(*arguments, code=2, **settings)
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
    assert process.stderr.startswith("pacdp: ")
    return process.stderr


def as_json(*arguments, call=run):
    lines = call(*arguments, "--json").stdout.splitlines()
    assert len(lines) == 1
    return json.loads(lines[0], parse_constant=pytest.fail)
