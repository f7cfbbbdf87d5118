"""Charts as inline SVG and HTML: drawn from numbers, coloured by the page's theme, readable without sight.

Colours are CSS classes (``s1`` .. ``s4``), so that light and dark themes share one drawing; lines also
differ in dash and end marker, so that colour is never the only sign. Every chart has a text alternative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 34
STYLES = ("s1", "s2", "s3", "s4")
Curves = dict[str, dict[str, list[tuple[float, float]]]]  # the numbers behind each chart, by line, for ``metrics.json``


@dataclass(frozen=True)
class Line:
    """One line of a chart; points with NaN are gaps. ``dots`` marks each point (sparse measurements)."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: str = "s1"
    dots: bool = False

    def points(self) -> list[tuple[float, float]]:
        pairs = zip(self.xs, self.ys, strict=True)
        return [(x, y) for x, y in pairs if math.isfinite(x) and math.isfinite(y)]


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About ``count`` round numbers that cover low..high."""
    if not high > low:
        half = abs(low) * 0.1 or 0.5
        low, high = low - half, high + half
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def _number(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _thinned(points: list[tuple[float, float]], limit: int = 240) -> list[tuple[float, float]]:
    """At most ``limit`` points: means of equal runs, so that a long log stays light and honest."""
    if len(points) <= limit:
        return points
    size = -(-len(points) // limit)
    runs = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in run) / len(run), sum(y for _, y in run) / len(run)) for run in runs]


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _marker(style: str, x: float, y: float) -> str:
    shape = {
        "s2": f'<rect x="{x - 3.4:.1f}" y="{y - 3.4:.1f}" width="6.8" height="6.8" rx="1"/>',
        "s3": f'<path d="M{x:.1f} {y - 4.6:.1f}l4.4 8h-8.8z"/>',
        "s4": f'<path d="M{x:.1f} {y - 4.8:.1f}l4.8 4.8-4.8 4.8-4.8-4.8z"/>',
    }.get(style, f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.8"/>')
    return f'<g class="mark {style}">{shape}</g>'


def summary(lines: Sequence[Line]) -> str:
    """A chart in words: where each line starts and ends."""
    parts = []
    for line in lines:
        points = line.points()
        if points:
            (x0, y0), (x1, y1) = points[0], points[-1]
            parts.append(f"{line.label}: {y0:.3g} at {x0:g}, {y1:.3g} at {x1:g}")
    return "; ".join(parts) or "no data"


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str = "epoch",
    bounds: tuple[float, float] | None = None,
    guide: tuple[float, str] | None = None,
) -> str:
    """An SVG line chart.

    Args:
        bounds: least range of the y axis that is always shown; data may widen it.
        guide: a horizontal line of reference and its label.
    """
    points = [p for line in lines for p in line.points()]
    if not points:
        return f'<p class="missing">{escape(title)}: nothing was logged.</p>'
    xs, ys = [x for x, _ in points], [y for _, y in points]
    reach = [*ys, *(bounds or ()), *((guide[0],) if guide else ())]
    y_ticks, x_ticks = nice_ticks(min(reach), max(reach)), _x_ticks(min(xs), max(xs))
    x0 = min(xs)
    x1 = max(*xs, x0 + 1e-9)
    y0, y1 = y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM),
        )

    text = f"{title}. {summary(lines)}."
    words = escape(text, quote=True)
    body = [f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}">']
    for tick in y_ticks:
        _, y = place(x0, tick)
        body.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(_text(LEFT - 7, y + 4, _number(tick), "end"))
    for tick in x_ticks:
        x, _ = place(tick, y0)
        body.append(_text(x, HEIGHT - BOTTOM + 16, _number(tick), "middle"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    body.append(_text(middle, HEIGHT - 3, x_label, "middle"))
    if guide:
        _, y = place(x0, guide[0])
        body.append(f'<line class="guide" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(_text(WIDTH - RIGHT, y - 5, guide[1], "end"))
    for line in lines:
        placed_points = [place(x, y) for x, y in (line.points() if line.dots else _thinned(line.points()))]
        if not placed_points:
            continue
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed_points)
        body.append(f'<path class="line {line.style}" d="{path}"/>')
        body += [_marker(line.style, x, y) for x, y in (placed_points if line.dots else placed_points[-1:])]
    return "".join(body) + "</svg>"


def _x_ticks(low: float, high: float) -> list[float]:
    return [tick for tick in nice_ticks(low, high, 5) if low - 1e-9 <= tick <= high + 1e-9]


def legend_marker(style: str) -> str:
    """The little sign of a line in a chart's legend."""
    return (
        f'<svg class="key" viewBox="0 0 26 12" aria-hidden="true"><path class="line {style}" d="M1 6L25 6"/>'
        f"{_marker(style, 13, 6)}</svg>"
    )


@dataclass(frozen=True)
class Axis:
    """A horizontal scale for interval plots, in percent of its width."""

    ticks: tuple[float, ...]

    @classmethod
    def over(cls, values: Sequence[float | None], *, include: Sequence[float] = ()) -> Axis:
        """Round numbers that hold all finite values and ``include``."""
        finite = [v for v in (*values, *include) if v is not None and math.isfinite(v)]
        return cls(tuple(nice_ticks(min(finite, default=0.0), max(finite, default=1.0))))

    def at(self, value: float | None) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        return round(100 * (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0]), 2)


def whisker(
    axis: Axis,
    mean: float | None,
    low: float | None,
    high: float | None,
    style: str,
    *,
    guide: float | None = None,
) -> str:
    """Dot and interval on an axis, as HTML as wide as its cell; the numbers stand beside it as text."""
    place, left, right = axis.at(mean), axis.at(low), axis.at(high)
    parts = [f'<i class="rule" style="left:{axis.at(tick)}%"></i>' for tick in axis.ticks]
    if guide is not None:
        parts.append(f'<i class="rule guide" style="left:{axis.at(guide)}%"></i>')
    if left is not None and right is not None:
        parts.append(f'<i class="bar {style}" style="left:{left}%;width:{max(right - left, 0.3):.2f}%"></i>')
    if place is not None:
        parts.append(f'<i class="dot {style}" style="left:{place}%"></i>')
    return f'<span class="whisker" aria-hidden="true">{"".join(parts)}</span>'


def axis_labels(axis: Axis) -> str:
    """Tick labels under a column of whiskers."""
    labels = [f'<i style="left:{axis.at(tick)}%">{_number(tick)}</i>' for tick in axis.ticks]
    return f'<span class="axis" aria-hidden="true">{"".join(labels)}</span>'


def arcs(count: int, edges: Sequence[tuple[int, int]], row: int, width: int) -> str:
    """The gutter beside a list of ``count`` rows: a dot a row, an arc for each (from, to) edge."""
    x = width - 12
    body = [
        f'<svg class="arcs" width="{width}" height="{count * row}" '
        f'viewBox="0 0 {width} {count * row}" aria-hidden="true">'
    ]
    for first, last in sorted(edges, key=lambda edge: edge[0] - edge[1]):
        y0, y1 = first * row + row / 2, last * row + row / 2
        if last - first == 1:
            body.append(f'<path class="next" d="M{x} {y0}L{x} {y1}"/>')
        else:
            reach = min(width - 16, 10 + 7.5 * (last - first))
            bend, middle = x - reach, (y0 + y1) / 2
            curve = f"M{x} {y0}C{bend} {y0} {bend} {y0 + 18} {bend} {middle}S{bend} {y1} {x} {y1}"
            body.append(f'<path class="arc" d="{curve}"/>')
    body += [f'<circle cx="{x}" cy="{n * row + row / 2}" r="5"/>' for n in range(count)]
    return "".join(body) + "</svg>"


@dataclass(frozen=True)
class DrawnChart:
    """A chart, its legend and its words."""

    title: str
    note: str
    svg: str
    legend: list[tuple[str, str]]

    @classmethod
    def of(cls, curves: Curves, key: str, title: str, note: str, lines: Sequence[Line], **options: Any) -> DrawnChart:
        """The chart of some lines, whose points are added to ``curves``; ``options`` as of :func:`line_chart`."""
        non_empty = [line for line in lines if line.points()]
        curves[key] = {line.label: line.points() for line in non_empty}
        legend = [(legend_marker(line.style), line.label) for line in non_empty]
        return cls(title, note, line_chart(non_empty, title=title, **options), legend if len(non_empty) > 1 else [])


def read_log(path: Path) -> pd.DataFrame | None:
    """The log of a training; None where there is none."""
    return pd.read_csv(path) if path.is_file() else None


def line(log: pd.DataFrame, x: str, column: str, label: str, style: str = "s1", *, dots: bool = False) -> Line:
    if column not in log.columns:
        return Line(label, [], [], style, dots)
    values = log[[x, column]].dropna()
    return Line(label, [float(v) for v in values[x]], [float(v) for v in values[column]], style, dots)


def by_size(log: pd.DataFrame, sizes: Sequence[int], measure: str) -> list[Line]:
    """A measure of a policy's evaluations, one line a size."""
    return [
        line(log, "epoch", f"eval/{size}/{measure}", f"{size} px", style, dots=True)
        for size, style in zip(sizes, STYLES, strict=False)
    ]
