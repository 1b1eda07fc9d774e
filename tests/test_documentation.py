"""The documentation matches the project: tests, pages, links, settings and public names."""

import ast
import html
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mkdocs.utils.yaml import yaml_load

import pacdp
from tests.documentation import PAGE, ROOT, update_tables

DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
# Documented as commands, not as a Python interface.
PUBLIC = sorted(
    {module.name for module in pkgutil.iter_modules(pacdp.__path__) if module.ispkg}
    - {"cli", "cluster", "deployment", "flower", "paper"}
)
# A test by its file and its name, which may be that of a class and its method.
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)+)`")
# What a browser loads by itself when it opens a page, from another host.
REMOTE = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'\s>]*"""
    r"""|<link\b[^>]*\bhref=["']?(?:https?:)?//[^"'\s>]*"""
    r"""|@import[^;]*//[^;]*|url\(["']?(?:https?:)?//[^)]*"""
)


def defined_tests(path: Path) -> set[str]:
    """Return the tests that a file defines, each as it is written after the file's path."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            names.add(f"::{node.name}")
        if isinstance(node, ast.ClassDef):
            names |= {
                f"::{node.name}::{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test_")
            }
    return names


def link_targets(text: str) -> list[str]:
    """Return what a page links to in this repository, ignoring code."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [target for target in links if not re.match(r"[a-z]+:", target)]


def heading_anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def nav_pages(entries: list) -> list[str]:
    """Return the pages of a navigation in their order, whatever its depth."""
    pages = []
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            pages += nav_pages(value) if isinstance(value, list) else [value]
    return pages


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_every_sharp_edge_names_a_test_that_exists():
    text = (DOCS / "sharp-edges.md").read_text(encoding="utf-8")
    edges = text.split("\n### ")[1:]
    assert len(edges) > 20
    for edge in edges:
        tests = TEST_NAME.findall(edge)
        assert tests, f"docs/sharp-edges.md: {edge.splitlines()[0]} names no test"
        for path, name in tests:
            exists = (ROOT / path).is_file() and name in defined_tests(ROOT / path)
            assert exists, f"docs/sharp-edges.md: there is no {path}{name}"


def test_every_page_is_in_the_navigation_once():
    listed = nav_pages(yaml_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(pages)


def test_the_landing_page_links_to_every_page():
    # The index of the reference stands for all pages in its folder.
    linked = link_targets((DOCS / "index.md").read_text(encoding="utf-8"))
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"} | {"reference/index.md"}
    assert pages <= set(linked)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target in link_targets(page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name}: {target} leads nowhere"
        if anchor:
            anchors = heading_anchors(linked.read_text(encoding="utf-8"))
            assert anchor in anchors, f"{page.name}: {target}"


def shown_names(page: Path) -> set[str]:
    """Return the names that a page of the API reference describes."""
    return set(map(html.unescape, re.findall(r'id="([^"]+)"', page.read_text(encoding="utf-8"))))


def test_the_reference_shows_every_function_of_the_top_level_api(site):
    functions = [name for name in pacdp.__all__ if inspect.isfunction(getattr(pacdp, name))]
    assert functions
    assert {f"pacdp.api.{name}" for name in functions} <= shown_names(site / "reference/index.html")


@pytest.mark.parametrize("subpackage", PUBLIC)
def test_the_reference_shows_every_public_class_and_function(site, subpackage):
    module = importlib.import_module(f"pacdp.{subpackage}")
    # Constants and type aliases have no docstring to show.
    members = {name: getattr(module, name) for name in module.__all__}
    documented = [n for n, m in members.items() if inspect.isclass(m) or inspect.isfunction(m)]
    shown = shown_names(site / "reference" / f"{subpackage}.html")
    missing = [name for name in documented if f"pacdp.{subpackage}.{name}" not in shown]
    assert not missing, f"docs/reference/{subpackage}.md does not show {', '.join(missing)}"


def test_the_site_loads_nothing_from_other_hosts(site):
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        remote = REMOTE.search(path.read_text(encoding="utf-8"))
        assert not remote, f"{path.relative_to(site)}: {remote[0]}"


def test_the_table_of_keys_is_what_is_checked():
    text = PAGE.read_text(encoding="utf-8")
    hint = "docs/your-own.md: update its tables with: python -m tests.documentation"
    assert update_tables(text) == text, hint
