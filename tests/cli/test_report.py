"""``pacdp report``, and the page that ``pacdp run`` leaves in its folder."""

import json

import pytest

from .command import refused, run, start


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two finished runs of one experiment, by two methods."""
    root = tmp_path_factory.mktemp("runs")
    run("run", "heart", "--profile", "smoke", "--out", root / "first")
    run("run", "heart", "--profile", "smoke", "--method", "fixed", "--out", root / "second")
    return root / "first", root / "second"


def test_a_run_leaves_a_page(folders):
    html = (folders[0] / "report.html").read_text()
    result = json.loads((folders[0] / "result.json").read_text())
    assert f"{100 * result['accuracy']:.1f} %" in html
    assert "pacdp run heart --profile smoke --seed 0" in html


def test_a_run_says_where_its_page_is(tmp_path):
    text = run("run", "heart", "--profile", "smoke", "--out", tmp_path / "a").stdout
    assert f"report: {tmp_path / 'a' / 'report.html'}" in text


def test_two_runs_become_a_comparison(folders, tmp_path):
    out = tmp_path / "both.html"
    assert str(out) in start("report", *folders, "--out", out, "--title", "Two of them").stdout
    html = out.read_text()
    assert "<h1>Two of them</h1>" in html
    assert html.count('<article class="panel"') == 2
    versions = json.loads((folders[0] / "environment.json").read_text())
    assert versions["torch"] in html
    assert versions["time"] not in html


def test_a_curve_in_the_folder_is_shown(folders, tmp_path, request):
    kept = folders[1] / "curve.json"
    kept.write_bytes((request.config.rootpath / "docs/curves/heart.json").read_bytes())
    run("report", folders[1], "--out", tmp_path / "a.html")
    kept.unlink()
    assert "score matrix P" in (tmp_path / "a.html").read_text()


def test_what_cannot_be_compared_is_refused(folders, tmp_path):
    other = tmp_path / "other"
    run("run", "heart-personalised", "--profile", "smoke", "--out", other)
    out = tmp_path / "page.html"
    assert "of another experiment" in refused("report", folders[0], other, "--out", out)
    assert "is given twice" in refused("report", folders[0], folders[0], "--out", out)
    assert not out.exists()
    out.write_text("mine")
    assert "exists already" in refused("report", folders[0], "--out", out)
    assert out.read_text() == "mine"


def test_a_folder_without_a_run_is_refused(refuses):
    assert "has no plan.json" in refuses("report", "nowhere", "--out", "a.html")


def test_a_comparison_can_be_a_page(tmp_path):
    out = tmp_path / "page.html"
    arguments = ("compare", "heart", "--profile", "smoke", "--methods", "fixed,fedavg")
    text = run(*arguments, "--seeds", 2, "--report", out).stdout
    assert f"report: {out}" in text
    html = out.read_text()
    assert html.count('<article class="panel"') == 2
    assert "pacdp compare heart --methods fixed,fedavg --seeds 2 --profile smoke" in html
    assert "exists already" in refused(*arguments, "--report", out)
