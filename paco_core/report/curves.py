"""Curves of the page, drawn from the log of a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from paco_core.report import charts
from paco_core.report.charts import Line

STYLES = ("s1", "s2", "s3", "s4")


@dataclass(frozen=True)
class Chart:
    """A chart, its legend and its words."""

    title: str
    note: str
    svg: str
    legend: list[tuple[str, str]]

    @classmethod
    def of(cls, title: str, note: str, lines: Sequence[Line], **how: Any) -> Chart:
        drawn = [line for line in lines if line.points()]
        legend = [(charts.legend_marker(line.style), line.label) for line in drawn]
        return cls(title, note, charts.line_chart(drawn, title=title, **how), legend if len(drawn) > 1 else [])


def read_log(path: Path) -> pd.DataFrame | None:
    return pd.read_csv(path) if path.is_file() else None


def line(log: pd.DataFrame, x: str, column: str, label: str, style: str = "s1", *, dots: bool = False) -> Line:
    if column not in log.columns:
        return Line(label, [], [], style, dots)
    values = log[[x, column]].dropna()
    return Line(label, [float(v) for v in values[x]], [float(v) for v in values[column]], style, dots)


def keep(curves: dict[str, Any], name: str, lines: Sequence[Line]) -> None:
    """The numbers behind a chart, for ``metrics.json``."""
    curves[name] = {line.label: line.points() for line in lines if line.points()}


def by_size(log: pd.DataFrame, sizes: Sequence[int], measure: str) -> list[Line]:
    """A measure of a policy's evaluations, one line a size."""
    return [
        line(log, "epoch", f"eval/{size}/{measure}", f"{size} px", style, dots=True)
        for size, style in zip(sizes, STYLES, strict=False)
    ]
