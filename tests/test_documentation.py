"""The documentation against what it speaks of: tests, pages, links and settings."""

import ast
import re
from pathlib import Path

import pytest
from mkdocs.utils.yaml import yaml_load

from tests.documentation import PAGE, ROOT, written

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
# A test by its file and its name, perhaps that of a class and its method.
NAMED = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)+)`")


def names_in(path: Path) -> set[str]:
    """The tests that a file defines, as they are named after the path."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            found.add(f"::{node.name}")
        if isinstance(node, ast.ClassDef):
            found |= {
                f"::{node.name}::{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test_")
            }
    return found


def targets(text: str) -> list[str]:
    """What a page links to in this repository, without what is in code."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    found = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The headings of a page as links name them."""
    heads = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def nav(entries: list) -> set[str]:
    """The pages of a navigation, whatever its depth."""
    found = set()
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            found |= nav(value) if isinstance(value, list) else {value}
    return found


def test_every_sharp_edge_names_a_test_that_exists():
    text = (DOCS / "sharp-edges.md").read_text(encoding="utf-8")
    edges = text.split("\n### ")[1:]
    assert len(edges) > 20
    for edge in edges:
        named = NAMED.findall(edge)
        assert named, f"docs/sharp-edges.md: {edge.splitlines()[0]} names no test"
        for path, name in named:
            there = (ROOT / path).is_file() and name in names_in(ROOT / path)
            assert there, f"docs/sharp-edges.md: there is no {path}{name}"


def test_every_page_is_in_the_navigation():
    listed = nav(yaml_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    assert {page.name for page in DOCS.glob("*.md")} == listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in targets(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target} leads nowhere"
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), f"{page.name}: {target}"


def test_the_table_of_keys_is_what_is_checked():
    text = PAGE.read_text(encoding="utf-8")
    why = "docs/your-own.md: write its tables anew with: python -m tests.documentation"
    assert written(text) == text, why
