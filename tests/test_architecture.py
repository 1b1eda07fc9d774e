"""What import-linter's contracts in pyproject.toml cannot say."""

import ast
import subprocess
import sys
from pathlib import Path

import pacdp

ROOT = Path(pacdp.__file__).parent


def test_imports_are_absolute():
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path


def test_privacy_needs_neither_torch_nor_a_plotting_library():
    script = "import sys, pacdp.privacy; print({'torch', 'matplotlib'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout == "set()\n"
