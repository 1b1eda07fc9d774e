"""What figures show is what the results say, and each point speaks for itself."""

import re
import statistics
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_rgb

from pacdp.reporting import Comparison
from pacdp.reporting.figures.clients import (
    plot_client_accuracy,
    plot_client_epsilon,
    plot_signal_to_noise,
)
from pacdp.reporting.figures.comparison import (
    plot_accuracy_by_budget,
    plot_by_epsilon,
    plot_final_metrics,
    plot_metric_by_round,
)
from pacdp.reporting.figures.mechanism import plot_clipping_and_noise
from pacdp.reporting.figures.palette import STYLES
from pacdp.reporting.figures.svg import render_svg
from pacdp.reporting.tables import tabulate_methods
from tests.pictures import draw_generated_images

from .runs import compared, run_result

TERMS = "δ = 1e-05, zero-out"


def drawn(picture):
    """The figure's lines by gid, as (x, y) pairs."""
    return {
        line.get_gid(): list(zip(*line.get_data(), strict=True))
        for axes in picture.figure.axes
        for line in axes.get_lines()
        if line.get_gid()
    }


def test_the_line_is_the_mean_over_seeds():
    made = compared("fixed")
    picture = plot_metric_by_round(made)
    (points,) = drawn(picture).values()
    for place, (number, height) in enumerate(points):
        both = [run.history[place].metrics["accuracy"] for run in made.groups["fixed"]]
        assert number == place + 1
        assert height == pytest.approx(100 * statistics.fmean(both))
    said = picture.table.rows[-1][1]
    assert said == f"{100 * statistics.fmean(both):.1f} ± {100 * statistics.stdev(both):.1f} %"


def test_every_seed_is_a_point():
    made = compared("fixed", "fedavg")
    groups = list(drawn(plot_final_metrics(made)).values())
    assert [len(points) for points in groups] == [2, 1, 2, 1]
    assert [x for x, _ in groups[0]] == [100 * run.accuracy for run in made.groups["fixed"]]


def test_points_on_the_page_are_in_the_order_of_their_words():
    picture = plot_metric_by_round(compared("fixed", "fedavg"))
    root = ElementTree.fromstring(render_svg(picture, prefix="a"))
    points = [use for use in root.iter("use") if use.get("data-tip", "").startswith("fedavg")]
    assert [use.get("data-tip").split(":")[0] for use in points] == [
        f"fedavg, round {number}" for number in (1, 2, 3)
    ]
    places = [(float(use.get("x")), float(use.get("y"))) for use in points]
    values = [float(re.search(r": ([\d.]+)", use.get("data-tip"))[1]) for use in points]
    assert places == sorted(places)
    # On a page y goes down; rounding may tie two values.
    for (_, above), high in zip(places, values, strict=True):
        assert all(
            above <= below + 1e-6
            for (_, below), low in zip(places, values, strict=True)
            if low < high
        )


def test_thresholds_are_those_of_the_method():
    one = run_result("pac-dp")
    left, right = {}, {}
    for gid, points in drawn(
        plot_clipping_and_noise(Comparison({"pac-dp": [one]}), "pac-dp")
    ).items():
        (left, right)[int(gid.split("-")[1]) % 2][gid] = points
    levels = sorted({task.epsilon for task in one.plan.clients})
    for level, bounds, noises in zip(levels, left.values(), right.values(), strict=True):
        task = next(task for task in one.plan.clients if task.epsilon == level)
        for (t, bound), (_, noise) in zip(bounds, noises, strict=True):
            planned = one.plan.algorithm.bound(level, round=int(t) - 1, rounds=one.plan.rounds)
            assert bound == pytest.approx(planned)
            assert noise == pytest.approx(planned * task.noise_multiplier)


@pytest.mark.parametrize("method", ["aqc", "cgm-median"])
def test_trackers_show_where_noised_counts_led(method):
    made = compared(method)
    runs = made.groups[method]
    first = next(iter(drawn(plot_clipping_and_noise(made, method)).values()))
    found = [
        statistics.fmean(run.history[number].clipping_bound for run in runs) for number in range(3)
    ]
    assert [bound for _, bound in first] == pytest.approx(found)
    assert len(set(found)) == 3


def test_without_a_guarantee_there_is_nothing_to_show():
    runs = compared("fedavg")
    assert plot_clipping_and_noise(runs, "fedavg") is None
    assert plot_client_epsilon(runs.groups["fedavg"][0]) is None
    assert plot_signal_to_noise(runs) is None
    assert plot_accuracy_by_budget(runs) is None
    assert plot_client_accuracy(runs.groups["fedavg"][0]) is not None
    assert tabulate_methods(runs).rows[0][3:5] == ("–", "–")


def test_every_series_has_its_own_style():
    made = compared("fixed", "fedavg", "pac-dp")
    assert list(made.styles.values()) == list(STYLES[:3])
    many = Comparison({str(number): made.groups["fixed"] for number in range(len(STYLES) + 2)})
    assert len(set(many.styles.values())) == len(many.groups)


def test_looks_differ_by_more_than_colour():
    for kind in ("colour", "dark_colour", "dash", "marker"):
        assert len({getattr(look, kind) for look in STYLES}) == len(STYLES)


@pytest.mark.parametrize("look", STYLES, ids=lambda look: look.marker)
def test_colours_are_seen_on_light_and_on_dark(look):
    assert _contrast(look.colour, "#fdfdfc") >= 3
    assert _contrast(look.dark_colour, "#14181c") >= 3


def _contrast(one, other):
    """The contrast ratio of the Web Content Accessibility Guidelines."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour):
    parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def test_every_axis_has_a_name_and_every_epsilon_its_terms():
    made = compared("pac-dp", "fixed")
    pictures = [
        *(plot_metric_by_round(made), plot_accuracy_by_budget(made), plot_signal_to_noise(made)),
        *(
            plot_client_epsilon(run_result()),
            plot_client_accuracy(run_result()),
            plot_clipping_and_noise(made, "pac-dp"),
        ),
        plot_by_epsilon({"fixed": {0.1: [0.5]}}, terms=TERMS),
    ]
    for picture in pictures:
        for axes in picture.figure.axes:
            for label in (axes.get_xlabel(), axes.get_ylabel()):
                assert label
                assert "ε" not in label or TERMS in label


def test_a_figure_stays_as_it_was_when_it_is_put_into_a_page():
    picture = plot_metric_by_round(compared("fixed"))
    first = render_svg(picture, prefix="a")
    assert picture.figure.patch.get_visible()
    assert render_svg(picture, prefix="a") == first
    assert "#000000" not in first
    assert "currentColor" in first


def test_what_is_left_of_a_budget():
    client = run_result().clients[0]

    def left(**changes):
        held = {"epsilon_budget": 1.0, "epsilon_spent": 1 - 1e-12, "label": ""}
        return client.model_copy(update=held | changes).epsilon_left

    assert left() == 0
    assert left(epsilon_spent=0.75) == 0.25
    assert left(label="per-release") is None
    assert left(epsilon_budget=None) is None


def test_the_documentation_shows_every_kind_of_generated_image():
    titles = [panel.get_title(loc="left") for panel in draw_generated_images().axes]
    assert [title[:11] for title in titles] == ["Scribbles: ", "Dead leaves", "Strokes: ge"]
