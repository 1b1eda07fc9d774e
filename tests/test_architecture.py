"""Imports go one way, and the privacy room knows nothing of torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pacdp

ROOT = Path(pacdp.__file__).parent
# Each room may use itself and what stands before it.
ORDER = [
    *("errors", "arithmetic", "checks", "settings", "words", "files", "privacy", "clipping"),
    *("data", "representation", "models", "schedule", "curve", "methods"),
    *("federation", "offline", "cluster", "theory"),
    *("experiments", "tuning", "report", "studies", "cli"),
]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def modules():
    return [path for path in ROOT.rglob("*.py") if room(path) not in ("__init__", "__main__")]


def test_every_room_has_its_place():
    assert {room(path) for path in modules()} <= set(ORDER)


def test_imports_go_one_way():
    for path in modules():
        for name in imports(path):
            parts = name.split(".")
            # `from pacdp import __version__` is the package itself, which imports nothing.
            if parts[0] == "pacdp" and parts[1] in ORDER:
                assert ORDER.index(parts[1]) <= ORDER.index(room(path)), f"{path} imports {name}"


def test_imports_are_absolute():
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path


def test_privacy_needs_neither_torch_nor_a_plotting_library():
    script = "import sys, pacdp.privacy; print({'torch', 'matplotlib'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "set()\n"
