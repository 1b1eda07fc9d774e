"""Generated handwriting: digits drawn with a pen along splines, in the format of MNIST.

The shapes of digits are common knowledge, so no one's records are needed to draw them, and the
images cost no privacy: a curve can be fitted on them, or a model trained before private data are
used.
"""

from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pacdp.data.builtin import TEST_SHARE
from pacdp.data.records import Dataset, Records, draw_stratified, make_generator, split_dataset
from pacdp.data.sources import generated_provenance
from pacdp.errors import InputError
from pacdp.tasks import Classification
from pacdp.validation import require_count

SIDE, BOX, CENTRE = 28, 20.0, 14.0
# Points along the path of the pen. A digit is 40 to 80 pixels long, so the discs overlap.
POINTS = 112
# Images that are drawn together: few enough for the processor's cache.
BATCH = 128
# Rows of a spline between two control points, before points are chosen among them.
SPLINE_ROWS = 40
# Control points of a random stroke.
SCRIBBLE_POINTS = 7

Reals = NDArray[np.float32]
Image = NDArray[np.uint8]


def _read_templates() -> dict[int, list[tuple[float, str]]]:
    """Read the weights and strokes of the templates of each digit."""
    templates: dict[int, list[tuple[float, str]]] = {}
    text = resources.files("pacdp.data").joinpath("strokes.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            digit, weight, strokes = line.split(" ", 2)
            templates.setdefault(int(digit), []).append((float(weight), strokes))
    return templates


TEMPLATES = _read_templates()


def generate_strokes(*, records: int = 20000, seed: int = 0) -> Dataset:
    """Generate digits from templates, each deformed, slanted and drawn with its own pen.

    >>> data = generate_strokes(records=100)
    >>> data.shape, len(data.train), len(data.test)
    ((1, 28, 28), 80, 20)
    """
    size = int(require_count("records", records))
    kinds = len(TEMPLATES)
    if size < 5 * kinds:
        raise InputError(f"records = {size}: must be at least 5 for each of {kinds} classes")
    random = make_generator("seed", seed)
    labels = np.arange(size, dtype=np.int64) % kinds
    paths = np.empty((size, POINTS, 2), np.float32)
    for digit, templates in TEMPLATES.items():
        weights = np.array([weight for weight, _ in templates])
        members = np.flatnonzero(labels == digit)
        chosen = random.choice(len(templates), len(members), p=weights / weights.sum())
        for number, (_, strokes) in enumerate(templates):
            drawn = members[chosen == number]
            paths[drawn] = _vary_template(_parse_template(strokes), len(drawn), random)
    images = _draw_images(_deform(paths, random), random)
    return split_dataset(
        Records(features=images, labels=labels),
        draw_stratified(labels, TEST_SHARE, seed),
        name="strokes",
        task=Classification.named(tuple(map(str, TEMPLATES))),
        provenance=generated_provenance(seed),
    )


def draw_scribbles(records: int, seed: int) -> Image:
    """Draw random strokes with the same pens, without using the templates of digits.

    >>> draw_scribbles(3, seed=0).shape
    (3, 1, 28, 28)
    """
    size = int(require_count("records", records))
    random = make_generator("seed", seed)
    strokes = random.integers(1, 4, size)
    paths = np.empty((size, POINTS, 2), np.float32)
    for lines in (1, 2, 3):
        drawn = np.flatnonzero(strokes == lines)
        total = lines * SCRIBBLE_POINTS
        points = _random_walks(len(drawn), lines, random).reshape(len(drawn), total, 2)
        basis = _spline_basis(np.arange(total).reshape(lines, -1).tolist(), total)
        rows = np.linspace(0, len(basis) - 1, POINTS).round().astype(np.int64)
        paths[drawn] = basis[rows] @ points
    return _draw_images(paths, random)


def _random_walks(size: int, lines: int, random: np.random.Generator) -> Reals:
    """Draw control points of random strokes, each with its own curvature."""
    stroke, point = (size, lines, 1), (size, lines, SCRIBBLE_POINTS)
    curvature = random.normal(0, 0.6, stroke)
    turns = curvature + random.normal(0, 1, point) * random.uniform(0, 0.7, stroke)
    heading = random.uniform(0, 2 * np.pi, stroke) + np.cumsum(turns, axis=2)
    length = random.uniform(0.3, 1.0, stroke) * random.uniform(0.6, 1.4, point)
    steps = np.stack([np.cos(heading), np.sin(heading)], axis=-1) * length[..., None]
    places = np.cumsum(steps, axis=2)
    # The strokes of an image are centred near each other, so that they often cross.
    places -= places.mean(2, keepdims=True)
    places += random.normal(0, 0.8, (size, lines, 1, 2))
    return places.astype(np.float32)


class Template(NamedTuple):
    """One way to write a digit."""

    points: Reals
    """Control points (m, 2), in heights of the digit."""
    basis: Reals
    """(path points, m): the weight of each control point in each point of the path."""
    ends: Reals
    """(m, 1): 1 where the pen is set down or lifted, else 0."""
    parts: Reals
    """(path points, strokes): 1 where a point belongs to a stroke."""


@cache
def _parse_template(strokes: str) -> Template:
    known: dict[tuple[float, float], int] = {}
    lines = []
    for stroke in strokes.split("/"):
        line: list[int] = []
        for word in stroke.split():
            x, y = word.rstrip("!").split(",")
            index = known.setdefault((float(x) / 100, float(y) / 100), len(known))
            # A repeated control point makes a corner.
            line += [index] * (2 if word.endswith("!") else 1)
        lines.append(tuple(line))
    points = np.array(list(known), np.float32)
    ends = np.zeros((len(points), 1), np.float32)
    ends[[line[side] for line in lines for side in (0, -1) if line[0] != line[-1]]] = 1
    basis = _spline_basis(lines, len(points))
    along = basis @ points
    length = np.hypot(*np.diff(along, axis=0, prepend=along[:1]).T)
    owner = np.repeat(np.arange(len(lines)), [SPLINE_ROWS * (len(line) - 1) for line in lines])
    # The pen is lifted between strokes; a tiny length still puts a point at each end.
    length[np.diff(owner, prepend=-1) > 0] = 1e-3
    total = np.cumsum(length)
    rows = np.searchsorted(total, np.linspace(total[0], total[-1] * (1 - 1e-6), POINTS))
    parts = owner[rows, None] == np.arange(len(lines))
    return Template(points, basis[rows], ends, parts.astype(np.float32))


def _spline_basis(lines: Sequence[Sequence[int]], points: int) -> Reals:
    """Return the weights of the control points along Catmull-Rom splines through them."""
    t = np.linspace(0, 1, SPLINE_ROWS)[:, None]
    # For the control point before, the two around the pen, and the one after.
    weights = 0.5 * np.hstack(
        [-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2]
    )
    rows = []
    for line in lines:
        closed = line[0] == line[-1]
        before, after = (line[-2], line[1]) if closed else (line[0], line[-1])
        path = [before, *line, after]
        for start in range(len(line) - 1):
            row = np.zeros((SPLINE_ROWS, points), np.float32)
            for column, point in enumerate(path[start : start + 4]):
                row[:, point] += weights[:, column]
            rows.append(row)
    return np.concatenate(rows)


def _vary_template(template: Template, size: int, random: np.random.Generator) -> Reals:
    """Draw paths of a template with displaced control points and strokes."""
    points, basis, ends, parts = template
    # Some writers are steadier than others, and the ends of a stroke vary most.
    deviation = random.uniform(0.01, 0.045, (size, 1, 1)) * (1 + ends)
    moved = points + random.normal(size=(size, *points.shape)) * deviation
    strokes = random.normal(0, 0.02, (size, parts.shape[1], 2))
    paths = basis @ moved.astype(np.float32) + parts @ strokes.astype(np.float32)
    return paths.astype(np.float32)


def _deform(paths: Reals, random: np.random.Generator) -> Reals:
    """Bend paths by smooth waves, then stretch, slant and rotate them."""
    size = len(paths)

    def uniform(low: float, high: float) -> Reals:
        return random.uniform(low, high, (size, 1)).astype(np.float32)

    def normal(spread: float) -> Reals:
        values = random.normal(0, spread, (size, 1))
        return np.clip(values, -2.2 * spread, 2.2 * spread).astype(np.float32)

    x, y = paths[..., 0] - 0.25, paths[..., 1] - 0.5
    for _ in range(2):
        angle, phase, wave = uniform(0, 2 * np.pi), uniform(0, 2 * np.pi), uniform(2, 7)
        push = np.sin(wave * (x * np.cos(angle) + y * np.sin(angle)) + phase)
        x, y = x + normal(0.035) * push, y + normal(0.035) * push
    # Make the upper or the lower half larger.
    y = y + normal(0.12) * (0.25 - y**2)
    x = x * (1 + normal(0.25) * y) * np.exp(normal(0.22))
    x = x - (0.1 + normal(0.18)) * y
    turn = normal(0.12)
    cos, sin = np.cos(turn), np.sin(turn)
    return np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)


def _draw_images(paths: Reals, random: np.random.Generator) -> Image:
    """Scale paths to the box, draw each with its own pen and centre it by its mass."""
    size = len(paths)

    def uniform(low: float, high: float) -> Reals:
        return random.uniform(low, high, (size, 1, 1)).astype(np.float32)

    low, high = paths.min(1, keepdims=True), paths.max(1, keepdims=True)
    extent = np.maximum((high - low).max(2, keepdims=True), 1e-6)
    # Most pens are 1.5 to 4.5 pixels wide.
    radius = _limit_pen(
        (paths - low) / extent, uniform(0.75, 2.25), uniform(0, 1.2) * (uniform(0, 1) < 0.25)
    )
    # The pressure of the pen varies along the path.
    along = np.linspace(0, 2 * np.pi, POINTS, dtype=np.float32)[:, None]
    strength, wave, phase = uniform(0, 0.2), uniform(0.5, 2.5), uniform(0, 2 * np.pi)
    pressed = radius * (1 + strength * np.sin(wave * along + phase))
    middle = (low + high) / 2
    placed = (paths - middle) * (BOX * uniform(0.86, 1.01) - 2 * radius) / extent + CENTRE
    soft, blur = uniform(0.8, 2.4), uniform(0, 0.24)
    gain, level = uniform(0.95, 1.5), uniform(0.88, 1.06)
    images = np.empty((size, 1, SIDE, SIDE), np.uint8)
    for start in range(0, size, BATCH):
        part = slice(start, start + BATCH)
        pen = (pressed[part], radius[part], soft[part])
        # Drawn once to find the centre of mass, and again when centred: moving pixels would blur.
        first = _draw_discs(placed[part], *pen)
        ink = _draw_discs(placed[part] + CENTRE - _centre_of_mass(first), *pen)
        # Blur vertically, then horizontally; two transpositions restore the axes.
        for _ in range(2):
            wide = np.pad(ink, ((0, 0), (1, 1), (0, 0)))
            ink += blur[part] * (wide[:, :-2] + wide[:, 2:] - 2 * ink)
            ink = ink.transpose(0, 2, 1)
        ink = np.minimum(ink * gain[part], 1) * level[part]
        images[part, 0] = np.round(255 * np.minimum(ink, 1))
    return images


def _limit_pen(paths: Reals, radius: Reals, extra: Reals) -> Reals:
    """Limit the radius of pens so that loops stay open; a plain bar may be thicker instead."""
    x, y = (paths - paths.mean(1, keepdims=True)).transpose(2, 0, 1)
    half, mixed = ((x**2).mean(1) - (y**2).mean(1)) / 2, (x * y).mean(1)
    # The variance across the path's longest direction; for a narrow ring, about its inner width.
    spread = ((x**2).mean(1) + (y**2).mean(1)) / 2 - np.hypot(half, mixed)
    inner = BOX * np.sqrt(np.maximum(spread, 0))[:, None, None]
    steps = np.hypot(np.diff(x, axis=1), np.diff(y, axis=1))
    # Steps between two strokes are far longer than others, and do not count.
    usual = np.median(steps, axis=1, keepdims=True)
    length = np.where(steps < 4 * usual, steps, 0).sum(1)[:, None, None]
    legible = np.minimum(radius, np.clip(0.8 * inner, 0.75, 5.2 / np.maximum(length, 1)))
    return np.where(length > 1.9, legible, radius + extra * np.clip(2 - length, 0, 1))


def _draw_discs(points: Reals, pressed: Reals, radius: Reals, soft: Reals) -> Reals:
    """Return ink in [0, 1] at each pixel: how far it lies inside the nearest disc of the pen."""
    pixels = np.arange(SIDE, dtype=np.float32)
    # The axis of points comes first, so that each step of the loop is one pass over the images.
    across = np.ascontiguousarray(((pixels - points[..., :1]) ** 2).transpose(1, 0, 2))
    down = np.ascontiguousarray(((pixels - points[..., 1:]) ** 2 - pressed**2).transpose(1, 0, 2))
    nearest = down[0, :, :, None] + across[0, :, None]
    for row, column in zip(down[1:], across[1:], strict=True):
        np.minimum(nearest, row[:, :, None] + column[:, None], out=nearest)
    # The distance for a pen of constant radius.
    distance = np.sqrt(np.maximum(nearest + radius**2, 0))
    return np.clip((radius - distance) / soft + 0.5, 0, 1)


def _centre_of_mass(ink: Reals) -> Reals:
    """Return the centre of mass of each image, (n, 1, 2), horizontally and vertically."""
    pixels = np.arange(SIDE, dtype=np.float32)
    total = ink.sum((1, 2))
    across, down = ink.sum(1) @ pixels / total, ink.sum(2) @ pixels / total
    return np.stack([across, down], axis=-1)[:, None]
