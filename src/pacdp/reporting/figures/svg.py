"""Charts as SVG inside a page: real text, the page's colours, and points with tooltips."""

import io
import re
import warnings
from collections.abc import Sequence
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure

from pacdp.reporting.figures.base import Chart, Point
from pacdp.reporting.figures.palette import STYLES

_NAMESPACE = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
# Colours that the page replaces by its own; without a page's style the colour itself applies.
_COLOURS = {
    "#000000": "currentColor",
    **{style.colour: f"var(--series-{n}, {style.colour})" for n, style in enumerate(STYLES)},
    # The default colours of matplotlib, for figures that choose none.
    **{
        colour: f"var(--series-{n}, {colour})"
        for n, colour in enumerate(("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728"))
    },
}
_COLOUR = re.compile("|".join(_COLOURS))
_FONT = re.compile(r"font: (?:(?P<weight>bold|\d{3}) )?(?P<size>[\d.]+)px [^;]*")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def render_svg(chart: Chart, *, prefix: str) -> str:
    """Render a chart for use inside a page, where all its ids begin with ``prefix``.

    The same chart gives the same bytes. There is no XML namespace: inside a page none is needed.

    >>> from pacdp.reporting.figures.comparison import plot_by_epsilon
    >>> chart = plot_by_epsilon({"a": {1.0: [0.5]}}, terms="δ = 1e-05, zero-out")
    >>> svg = render_svg(chart, prefix="x")
    >>> svg[:4], "http" in svg, 'data-tip="a, ε = 1 (δ = 1e-05, zero-out): 50.0 %"' in svg
    ('<svg', False, True)
    """
    root = ElementTree.fromstring(_save(chart.figure, prefix))
    for parent in list(root.iter()):
        parent.tag = parent.tag.removeprefix(_NAMESPACE)
        for child in list(parent):
            # The page brings its own style and metadata.
            if child.tag in (f"{_NAMESPACE}metadata", f"{_NAMESPACE}style"):
                parent.remove(child)
    groups = {element.get("id"): element for element in root.iter()}
    for gid, points in chart.points.items():
        _add_tooltips(groups[gid], points)
    marks = [element for element in root.iter("use") if element.get("data-tip")]
    # The tab key stops once per chart; arrow keys move between its points.
    for place, mark in enumerate(marks):
        mark.set("tabindex", "-1" if place else "0")
    for element in root.iter():
        _adapt_to_page(element, prefix)
    _describe(root, chart, prefix, role="group" if marks else "img")
    return ElementTree.tostring(root, encoding="unicode")


def _save(figure: Figure, salt: str) -> str:
    stream = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}),
        warnings.catch_warnings(),
    ):
        # Text stays text: a browser has glyphs that the font used for measuring lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(stream, format="svg", metadata=metadata, transparent=True)
    return stream.getvalue()


def _add_tooltips(group: ElementTree.Element, points: Sequence[Point]) -> None:
    """Attach each point's tooltip to its mark."""
    for mark, point in zip(group.iter("use"), points, strict=True):
        mark.attrib |= {"data-tip": point.tooltip, "aria-label": point.tooltip, "role": "img"}
        if point.client:
            mark.set("data-client", point.client)


def _adapt_to_page(element: ElementTree.Element, prefix: str) -> None:
    """Use ids that no other chart has, and the page's colours and font."""
    if "id" in element.attrib:
        element.set("id", f"{prefix}-{element.attrib['id']}")
    if _LINK in element.attrib:
        target = element.attrib.pop(_LINK)
        element.set("href", f"#{prefix}-{target[1:]}" if target.startswith("#") else target)
    for name in ("style", "clip-path", "fill", "stroke"):
        if name in element.attrib:
            value = _REFERENCE.sub(rf"url(#{prefix}-\1)", element.attrib[name])
            value = _COLOUR.sub(lambda match: _COLOURS[match[0]], value)
            element.set(name, _FONT.sub(_keep_font_size, value))


def _keep_font_size(font: re.Match[str]) -> str:
    weight = f"; font-weight: {font['weight']}" if font["weight"] else ""
    return f"font-size: {font['size']}px{weight}"


def _describe(root: ElementTree.Element, chart: Chart, prefix: str, *, role: str) -> None:
    """Add an accessible name and description; a title element would show a second tooltip."""
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    width = float(root.attrib["viewBox"].split()[2])
    root.set("style", f"--width: {width:g}px")
    root.set("fill", "currentColor")
    root.set("stroke-linejoin", "round")
    # The role img would hide the points from assistive technology.
    root.set("role", role)
    root.set("aria-label", chart.title)
    root.set("aria-describedby", f"{prefix}-description")
    description = ElementTree.Element("desc", {"id": f"{prefix}-description"})
    description.text = chart.caption
    root.insert(0, description)
