"""A picture as SVG inside a page: real text, colours that follow the page, points that speak."""

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from xml.etree import ElementTree

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pacdp.report.figures.base import Picture, Tip
from pacdp.report.figures.palette import LOOKS

_NAMESPACE = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
# What a page may colour anew; a browser without a page's style takes the colour itself.
_COLOURS = {
    "#000000": "currentColor",
    **{look.colour: f"var(--series-{n}, {look.colour})" for n, look in enumerate(LOOKS)},
    # Those of figures that leave the choice to matplotlib.
    **{
        colour: f"var(--series-{n}, {colour})"
        for n, colour in enumerate(("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728"))
    },
}
_COLOUR = re.compile("|".join(_COLOURS))
_FONT = re.compile(r"font: (?:(?P<weight>bold|\d{3}) )?(?P<size>[\d.]+)px [^;]*")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def svg(picture: Picture, *, prefix: str) -> str:
    """The picture for use inside a page. All its ids begin with ``prefix``.

    The same picture gives the same bytes. A name space is what a file needs, and a page does not.

    >>> from pacdp.report.figures.comparison import by_epsilon
    >>> drawn = svg(by_epsilon({"a": {1.0: [0.5]}}, terms="δ = 1e-05, zero-out"), prefix="x")
    >>> drawn[:4], "http" in drawn, 'data-tip="a, ε = 1 (δ = 1e-05, zero-out): 50.0 %"' in drawn
    ('<svg', False, True)
    """
    root = ElementTree.fromstring(_drawn(picture.figure, prefix))
    for parent in list(root.iter()):
        parent.tag = parent.tag.removeprefix(_NAMESPACE)
        for child in list(parent):
            # The page has a style of its own, and says itself what it is.
            if child.tag in (f"{_NAMESPACE}metadata", f"{_NAMESPACE}style"):
                parent.remove(child)
    found = {element.get("id"): element for element in root.iter()}
    for gid, tips in picture.tips.items():
        _speak(found[gid], tips)
    points = [element for element in root.iter("use") if element.get("data-tip")]
    # One stop for the tabulator; arrows go on from there.
    for place, point in enumerate(points):
        point.set("tabindex", "-1" if place else "0")
    for element in root.iter():
        _own(element, prefix)
    _announce(root, picture, prefix, role="group" if points else "img")
    return ElementTree.tostring(root, encoding="unicode")


def _drawn(figure: Figure, salt: str) -> str:
    stream = io.StringIO()
    unknown = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}),
        warnings.catch_warnings(),
        _without_backgrounds(figure),
    ):
        # Text stays text: a browser has letters that the measuring font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(stream, format="svg", metadata=unknown)
    return stream.getvalue()


@contextmanager
def _without_backgrounds(figure: Figure) -> Iterator[None]:
    """The page's own colour shows through; the figure itself stays as it was."""
    patches: list[Patch] = [figure.patch, *(axes.patch for axes in figure.axes)]
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    patches += [legend.get_frame() for legend in legends if legend is not None]
    shown = [patch.get_visible() for patch in patches]
    try:
        for patch in patches:
            patch.set_visible(False)
        yield
    finally:
        for patch, visible in zip(patches, shown, strict=True):
            patch.set_visible(visible)


def _speak(group: ElementTree.Element, tips: Sequence[Tip]) -> None:
    """Give each point of a group its words."""
    points = list(group.iter("use"))
    assert len(points) == len(tips), f"{len(points)} points, {len(tips)} tips"
    for point, tip in zip(points, tips, strict=True):
        point.set("data-tip", tip.text)
        point.set("aria-label", tip.text)
        point.set("role", "img")
        if tip.client:
            point.set("data-client", tip.client)


def _own(element: ElementTree.Element, prefix: str) -> None:
    """Ids that no other picture has, colours of the page, and its font."""
    if "id" in element.attrib:
        element.set("id", f"{prefix}-{element.attrib['id']}")
    if _LINK in element.attrib:
        target = element.attrib.pop(_LINK)
        element.set("href", f"#{prefix}-{target[1:]}" if target.startswith("#") else target)
    for name in ("style", "clip-path", "fill", "stroke"):
        if name in element.attrib:
            value = _REFERENCE.sub(rf"url(#{prefix}-\1)", element.attrib[name])
            value = _COLOUR.sub(lambda match: _COLOURS[match[0]], value)
            element.set(name, _FONT.sub(_size, value))


def _size(font: re.Match[str]) -> str:
    weight = f"; font-weight: {font['weight']}" if font["weight"] else ""
    return f"font-size: {font['size']}px{weight}"


def _announce(root: ElementTree.Element, picture: Picture, prefix: str, *, role: str) -> None:
    """A name and a description. A title element would pop up wherever the mouse rests."""
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    width = float(root.attrib["viewBox"].split()[2])
    root.set("style", f"--width: {width:g}px")
    root.set("fill", "currentColor")
    root.set("stroke-linejoin", "round")
    # Points are to be reached one by one: what is an image as a whole has no parts.
    root.set("role", role)
    root.set("aria-label", picture.title)
    root.set("aria-describedby", f"{prefix}-description")
    described = ElementTree.Element("desc", {"id": f"{prefix}-description"})
    described.text = picture.caption
    root.insert(0, described)
