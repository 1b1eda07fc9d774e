"""The page as text: safe, whole, the same each time, and readable without its figures."""

import json
import re
from html.parser import HTMLParser

import pytest

from pacdp.curve import Curve
from pacdp.errors import InputError
from pacdp.reporting import Comparison, render_page
from pacdp.reporting.figures.clients import plot_client_epsilon
from pacdp.reporting.figures.comparison import plot_by_epsilon, plot_metric_by_round
from pacdp.reporting.figures.svg import render_svg
from pacdp.reporting.tables import tabulate_clients, tabulate_levels
from pacdp.storage import write_atomically

from .runs import compared, renamed, run_result

EVIL = "<script>alert(1)</script>"
VERSIONS = {"pacdp": "1"}


class Document(HTMLParser):
    """Every element with its attributes, and the text of the page."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.text = [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def html():
    return render_page("Heart", compared("pac-dp", "aqc", "fedavg"), commands=["pacdp run heart"])


@pytest.fixture(scope="module")
def document(html):
    return Document(html)


def test_it_begins_as_a_document_in_english(html, document):
    assert html.startswith("<!doctype html>")
    assert document.all("html") == [{"lang": "en"}]
    assert [len(document.all(tag)) for tag in ("main", "h1", "header", "footer")] == [1] * 4


def test_nothing_is_loaded_from_elsewhere(html, document):
    assert not re.search(r"(?i)https?:|//[a-z]|@import|url\((?!#)", html)
    for _, attributes in document.elements:
        for name in ("src", "href", "xlink:href", "action", "data", "srcset"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")), target
    policy = next(
        m["content"] for m in document.all("meta") if "content" in m and "http-equiv" in m
    )
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy


def test_ids_are_unique_and_references_lead_somewhere(html, document):
    ids = [a["id"] for _, a in document.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for _, attributes in document.elements:
        for name in ("href", "aria-labelledby", "aria-describedby", "for"):
            target = attributes.get(name, "").removeprefix("#")
            if target and not target.startswith("data:"):
                assert target in ids, target
    assert set(re.findall(r"url\(#([^)]+)\)", html)) <= set(ids)


def test_every_figure_has_words_and_numbers(html):
    figures = re.findall(r"<figure.*?</figure>", html, re.DOTALL)
    assert len(figures) >= 8
    for figure in figures:
        assert re.search(r"<figcaption>.{20,}</figcaption>", figure, re.DOTALL)
        assert re.search(r"<details class=\"numbers\">.*<td>", figure, re.DOTALL)
        assert re.search(r"<svg [^>]*aria-label=\"[^\"]+\"", figure)
        assert "<desc" in figure


def test_the_same_results_give_the_same_bytes():
    made = [render_page("Heart", compared("pac-dp", "fixed"), versions=VERSIONS) for _ in range(2)]
    assert made[0] == made[1]
    assert render_page(
        "Heart", compared("pac-dp"), versions={**VERSIONS, "time": "noon"}
    ) == render_page("Heart", compared("pac-dp"), versions=VERSIONS)


def test_names_are_text_whatever_they_hold():
    held = renamed(run_result(), EVIL)
    made = render_page(EVIL, {EVIL: [held]}, description=EVIL, commands=[EVIL], notes=[EVIL])
    document = Document(made)
    assert EVIL not in made
    assert len(document.all("script")) == 1
    assert any(a.get("data-client") == EVIL for a in document.all("use"))
    assert EVIL in "".join(document.text)


@pytest.mark.parametrize("name", ["$a$ $\\frac$", "a\x00b\x1b", "病院", "two\nlines", "x" * 300])
def test_names_that_would_trip_a_drawing(name):
    held = renamed(run_result(), name)
    drawn = render_svg(plot_client_epsilon(held), prefix="a")
    # What is not allowed in a document is replaced, and the rest is there as it is.
    whole = name.replace("\x00", "·").replace("\x1b", "·").replace("\n", "·")
    assert f'data-client="{whole}"' in drawn
    assert tabulate_clients(held).rows


def test_no_epsilon_without_its_adjacency(html, document):
    text = "".join(document.text)
    assert "δ = 1e-05, zero-out" in text
    for table in re.findall(r"<table>.*?</table>", html, re.DOTALL):
        if "ε" in table:
            assert "zero-out" in table, table[:300]
    for attributes in document.all("use"):
        tip = attributes.get("data-tip", "")
        assert "ε" not in tip or "zero-out" in tip, tip
    for drawn in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        assert "ε" not in drawn or "zero-out" in drawn


def test_a_budget_that_is_not_certified_is_called_so(html):
    changes = ('privacy.scope="per-release"',)
    loud = render_page("Heart", {"fixed": [run_result("fixed", changes=changes)]})
    realised = max(c.epsilon_spent for c in run_result("fixed", changes=changes).clients)
    assert "the budget is NOT what the whole run certifies" in loud
    assert f"{realised:.4g}" in loud
    assert "NOT what" not in html


def test_it_says_what_epsilon_does_not_cover(html):
    assert "not covered by any ε" in html
    assert "fedavg: no guarantee" in html


def test_budgets_of_single_records_have_a_table_and_a_caution(html):
    runs = {method: [run_result(method, name="heart-records")] for method in ("fixed", "fedavg")}
    page = Document(render_page("Heart", runs, versions=VERSIONS))
    text = "".join(page.text)
    assert "Budgets of single records" in text
    assert "Spent ε over records: 0.1 / 0.1 / 5 (minimum / median / maximum)" in text
    assert "choosing a budget must not itself be the secret" in text
    assert text.count("clipping bound C_j/C") == 1  # fedavg has no budgets
    table = tabulate_levels(runs["fixed"][0])
    assert table.rows == [
        ("0.1", "343", "0.1", "0.1", "0.029"),
        ("1", "98", "1", "1", "0.2391"),
        ("5", "49", "5", "5", "1"),
    ]
    assert "zero-out" in table.caption
    assert "Budgets of single" not in html
    assert "must not itself be the secret" not in html


def test_levels_that_are_sampled_show_their_rates():
    result = run_result("fixed", name="heart-records")
    first, *others = result.clients
    levels = tuple(level.model_copy(update={"sampling_rate": 0.2}) for level in first.levels)
    clients = (first.model_copy(update={"levels": levels}), *others)
    table = tabulate_levels(result.model_copy(update={"clients": clients}))
    assert table.headings[-1] == "sampling rate"
    assert table.rows[0][-1] == "0.2, 1"


def test_what_public_records_reached_stands_beside_the_result():
    plain = run_result()
    before = {"before_private_data": {"accuracy": 0.4321, "loss": 1.0}}
    made = render_page("Heart", {"pac-dp": [plain.model_copy(update=before)]})
    assert made.count("43.2 %") == 2  # in words and in the table
    assert "before private data" in made


def test_the_plan_is_there_in_full(html):
    found = [
        json.loads(_unescaped(one)) for one in re.findall(r"<pre[^>]*>(\{.*?)</pre>", html, re.S)
    ]
    assert found == [
        json.loads(runs[0].plan.model_dump_json())
        for runs in compared("pac-dp", "aqc", "fedavg").groups.values()
    ]


def _unescaped(text):
    import html as standard

    return standard.unescape(text)


def test_a_fitted_curve_is_shown_with_its_matrix(request):
    curve = Curve.load(request.config.rootpath / "docs/curves/heart.json")
    made = render_page("Heart", compared("fixed"), curve=curve)
    assert "score matrix P" in made
    assert "data:image/png" in made  # the colour bar
    assert "score matrix P" not in render_page("Heart", compared("fixed"))


def test_figures_of_ones_own():
    picture = plot_by_epsilon(
        {"fixed": {0.1: [0.5], 1.0: [0.7]}}, terms="δ = 1e-05, zero-out", title="A sweep"
    )
    assert "<h2>A sweep</h2>" in render_page("Heart", compared("fixed"), extra_charts=[picture])


def test_arms_of_runs():
    runs = [run_result("fixed", 1), run_result("pac-dp"), run_result("fixed", 0)]
    made = Comparison.of(runs)
    assert {name: [one.plan.seed for one in found] for name, found in made.groups.items()} == {
        "fixed": [0, 1],
        "pac-dp": [0],
    }
    longer = run_result("fixed", changes=("training.rounds=4",))
    assert list(Comparison.of([run_result("fixed"), longer]).groups) == [
        "fixed (training.rounds = 3)",
        "fixed (training.rounds = 4)",
    ]
    with pytest.raises(InputError, match="is given twice"):
        Comparison.of([run_result(), run_result()])
    other = run_result("fixed", changes=("privacy.delta=1e-6",))
    with pytest.raises(InputError, match="of another experiment"):
        Comparison.of([run_result(), other])


def test_a_client_that_nobody_asked_has_no_realised_epsilon():
    plain = run_result()
    first, *rest = plain.clients
    idle = first.model_copy(update={"epsilon_spent": 0.0, "releases": 0})
    told = plain.model_copy(update={"clients": (idle, *rest)})
    picture = plot_client_epsilon(told)
    assert [len(tips) for tips in picture.points.values()] == [4, 4, 3]
    assert "1 of them released nothing" in picture.caption


def test_rounds_that_were_not_evaluated_are_left_out():
    made = render_page("Heart", {"fixed": [run_result("fixed", changes=("evaluate_every=2",))]})
    assert "fixed, round 2:" in made
    assert "fixed, round 1:" not in made


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    """A run whose labels are no classes."""
    folder = tmp_path_factory.mktemp("values")
    for client in ("north", "south"):
        lines = [f"{n / 20},{1 - n / 30},{n / 17}" for n in range(20)]
        (folder / f"{client}.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")
    return run_result("fixed", changes=(f'data.name="{folder}"', "privacy.epsilon=5.0"))


def test_without_classes_there_is_a_loss(regression):
    made = render_page("Values", {"fixed": [regression]})
    assert "Loss by round" in made
    assert f"{regression.metrics['loss']:.4g}" in made
    assert "chance" not in made
    assert "Accuracy" not in made


def test_a_run_that_diverged_has_a_page_as_well(regression):
    history = tuple(row.model_copy(update={"metrics": {}}) for row in regression.history)
    lost = regression.model_copy(update={"metrics": {}, "history": history})
    assert "<td>–</td>" in render_page("Values", {"fixed": [lost]})


def test_many_rounds_keep_their_last_one():
    long = run_result("fixed", changes=("training.rounds=90",))
    drawn = plot_metric_by_round(Comparison({"fixed": [long]}))
    (tips,) = drawn.points.values()
    assert 30 < len(tips) <= 41
    assert tips[-1].tooltip.startswith("fixed, round 90:")
    assert len(drawn.table.rows) == 90


def test_a_page_is_written_whole(tmp_path):
    write_atomically(tmp_path / "a.html", "ε")
    assert [p.name for p in tmp_path.iterdir()] == ["a.html"]
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == "ε"
