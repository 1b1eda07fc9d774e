"""``pacdp reproduce all --profile smoke``, as a user types it, and what lies in its folder."""

import csv
import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from pacdp.experiments import RunResult
from pacdp.paper.studies.study import label_arm, list_studies, read_study
from tests.cli.command import refused, run, start

# What a program measured of the clock is another every time.
CLOCK = re.compile(r'"seconds": [\d.e-]+')


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("results") / "smoke"
    start("reproduce", "all", "--profile", "smoke", "--out", path)
    return path


def comparisons():
    made = [read_study(name, profile="smoke") for name in list_studies()]
    return [study for study in made if study.kind == "comparison"]


def lines(folder, name):
    with (folder / "results" / f"{name}.csv").open() as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("name", list_studies())
def test_every_study_has_its_table_and_its_figure(folder, name):
    text = (folder / "results" / f"{name}.md").read_text()
    assert text in (folder / "results.md").read_text()
    assert text.count("|---|") >= 1
    assert lines(folder, name)
    if name != "overhead":
        ElementTree.parse(folder / "results" / f"{name}.svg")
        assert (folder / "results" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("study", comparisons(), ids=lambda study: study.name)
def test_every_row_stands_twice_with_the_papers_number(folder, study):
    rows = lines(folder, study.name)
    readings = {}
    for row in rows:
        readings.setdefault(row["method"], set()).add(row["reading"])
    wanted = [set(study.arm(arm).readings) for arm in study.arms]
    assert list(readings.values()) == wanted
    text = (folder / "results" / f"{study.name}.md").read_text()
    for value in study.paper.final.values():
        assert f"| {100 * value:.1f}, " in text


@pytest.mark.parametrize("study", comparisons(), ids=lambda study: study.name)
def test_certified_means_within_the_budget_and_as_published_says_what_it_costs(folder, study):
    for row in lines(folder, study.name):
        budget, certified = row["epsilon_budget_max"], row["epsilon_certified_max"]
        assert (row["delta"], row["adjacency"]) == ("1e-05", "zero-out")
        if row["reading"] == "certified" and budget:
            assert float(certified) <= float(budget) * (1 + 1e-9)
        if row["reading"] == "as-published" and row["method"] == "PAC-DP":
            # The published formula is loose: very few releases may cost less than one's budget.
            assert float(certified) != pytest.approx(float(budget), rel=1e-3)
            few = study.name.removeprefix("rounds-") in ("mnist", "cifar10")
            assert few or float(certified) > float(budget)


@pytest.mark.parametrize("study", comparisons(), ids=lambda study: study.name)
def test_every_comparison_has_a_page(folder, study):
    html = (folder / "reports" / f"{study.name}.html").read_text()
    assert html.startswith("<!doctype html>")
    assert "://" not in html
    certified = [arm for arm in study.arms if "certified" in study.arm(arm).readings]
    shown = certified or study.arms
    assert all(label_arm(arm) in html for arm in (*shown, *study.paper.final))
    assert f"pacdp reproduce {study.name} --profile smoke" in html


def test_other_data_are_named(folder):
    text = (folder / "results" / "mnist.md").read_text()
    assert "**This run:** digits for mnist, 6 clients" in text
    assert "**This run:** heart, 4 clients" in (folder / "results" / "heart.md").read_text()
    assert "mnist: digits for mnist" in (folder / "results" / "curves.md").read_text()
    for name in list_studies():
        assert "not a result" in (folder / "results" / f"{name}.md").read_text()
    assert {row["data"] for row in lines(folder, "cifar10")} == {"synthetic for cifar10"}


def test_resume_does_only_what_is_missing_and_ends_the_same(folder, tmp_path):
    page = (folder / "results" / "heart.md").read_text()
    runs = {path: path.stat().st_mtime_ns for path in (folder / "runs").iterdir()}
    # Of this study, not of the one with personal budgets, which trains the same experiment.
    mine = [path for path in sorted(runs) if path.name.startswith("heart-pac-dp")]
    gone = next(path for path in mine if RunResult.load_file(path).plan.privacy.epsilon == 0.1)
    before = CLOCK.sub("", gone.read_text())
    gone.unlink()
    docs = tmp_path / "docs"
    docs.mkdir()
    arguments = ("heart", "--profile", "smoke", "--out", folder, "--resume", "--docs", docs)
    run("reproduce", *arguments)
    assert CLOCK.sub("", gone.read_text()) == before
    untouched = [path for path in runs if path != gone]
    assert {path: path.stat().st_mtime_ns for path in untouched} == {p: runs[p] for p in untouched}
    assert (folder / "results" / "heart.md").read_text() == page
    # The page holds the other studies as well, and its links lead somewhere.
    text = (docs / "results.md").read_text()
    assert text == (folder / "results.md").read_text()
    for link in re.findall(r"\]\((results/[^)]+)\)", text):
        assert (docs / link).is_file(), link


def test_a_damaged_run_is_refused_by_name(folder):
    path = next((folder / "runs").glob("heart-*"))
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    try:
        with pytest.raises(Exception, match="is no result of a run"):
            RunResult.load_file(path)
    finally:
        path.write_text(whole)


def test_overhead_is_measured_in_turns(folder):
    (path,) = (folder / "runs").glob("overhead-*.json")
    kept = json.loads(path.read_text())
    assert kept["trainings"] > 0
    assert kept["ratio_least"] <= kept["ratio"] <= kept["ratio_most"]
    assert kept["bytes_per_round"] == 2 * 4 * 28 * 4


def test_bad_input_is_one_line_and_leaves_nothing(folder, tmp_path):
    out = ("--out", tmp_path / "new")
    assert "did you mean heart" in refused("reproduce", "hart", "--profile", "smoke", *out)
    assert "smoke, desk, full" in refused("reproduce", "heart", "--profile", "huge", *out)
    assert "is no folder" in refused("reproduce", "heart", *out, "--docs", tmp_path / "none")
    assert not (tmp_path / "new").exists()
    assert "--resume" in refused("reproduce", "heart", "--profile", "smoke", "--out", folder)
    (tmp_path / "thesis.tex").write_text("mine")
    other = ("reproduce", "heart", "--profile", "smoke", "--out", tmp_path, "--resume")
    assert "is not of this command" in refused(*other)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    wrong = ("reproduce", "heart", "--profile", "desk", "--out", folder, "--resume")
    assert "holds the profile smoke" in refused(*wrong)


def test_studies_are_listed():
    text = run("reproduce", "list").stdout
    assert [line.split()[0] for line in text.splitlines()] == list_studies()


def test_helpers_make_what_one_process_makes(folder, tmp_path):
    names = ("heart", "curves", "weights")
    start("reproduce", *names, "--profile", "smoke", "--jobs", "2", "--out", tmp_path / "out")
    for name in names:
        for kind in ("md", "svg"):
            files = [one / "results" / f"{name}.{kind}" for one in (folder, tmp_path / "out")]
            assert files[0].read_bytes() == files[1].read_bytes(), files[0]
        first, second = (lines(one, name) for one in (folder, tmp_path / "out"))
        for row in first + second:
            row.pop("seconds", None)
        assert first == second


def test_there_is_at_least_one_helper(tmp_path):
    found = refused("reproduce", "heart", "--jobs", "0", "--out", tmp_path / "out")
    assert "--jobs" in found
    assert not (tmp_path / "out").exists()


def test_what_a_helper_refuses_ends_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PACDP_DATA_DIR", str(tmp_path / "nothing"))
    found = refused("reproduce", "mnist", "--jobs", "2", "--out", tmp_path / "out", call=start)
    assert "mnist" in found
