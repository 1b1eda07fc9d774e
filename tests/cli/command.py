"""The command as a user types it, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "pacdp"


def run(*arguments, code=0, **settings):
    process = subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=900, **settings
    )
    assert process.returncode == code, process.stderr
    return process


def refused(*arguments, **settings):
    """One line on standard error, nothing on standard output."""
    process = run(*arguments, code=2, **settings)
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
    assert process.stderr.startswith("pacdp: ")
    return process.stderr


def as_json(*arguments):
    lines = run(*arguments, "--json").stdout.splitlines()
    assert len(lines) == 1
    return json.loads(lines[0], parse_constant=pytest.fail)
