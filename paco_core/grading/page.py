"""Output of a comparison: a table for the terminal, ``grade.json``, and the page ``grade.html``."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.grading.comparison import METHOD, Comparison, GradedAdapter
from paco_core.grading.measures import GRID, PER_PROMPT, TEXT
from paco_core.io.text_table import text_table
from paco_core.report import charts
from paco_core.report.html import Picture, render_page, text_of

if TYPE_CHECKING:
    from paco_core.benchmarks.statistics import Estimate
    from paco_core.grading.images import ImageFolder

TEMPLATE = Path(__file__).parent / "templates" / "grade.html.j2"
SHEET_PX = 160  # of a thumbnail
LABELS = {name: name.replace("_", " ") for name in (*PER_PROMPT, GRID)}


def measure_names(comparison: Comparison) -> list[str]:
    """The measures of the table, the main one first."""
    return [comparison.main, *(name for name in PER_PROMPT if name in comparison.base and name != comparison.main)]


def _difference(value: Estimate, form: str = "+.3f") -> str:
    if math.isnan(value.low):
        return text_of(value.mean, form)
    return f"{text_of(value.mean, form)} ({text_of(value.low, form)} to {text_of(value.high, form)})"


def table_rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table: each adapter, then the base model."""
    names = measure_names(comparison)
    head = [
        "",
        "adapter",
        LABELS[names[0]],
        "difference to the best",
        *(LABELS[name] for name in names[1:]),
        LABELS[GRID],
    ]
    rows = []
    for adapter in comparison.adapters:
        name = adapter.candidate.name
        mark = "best" if name == comparison.best else "!" if adapter.warnings else "=" if adapter.can_be_best else ""
        rows.append(
            [mark, name, *_cells(names, adapter.measures, adapter.difference), text_of(adapter.grid_score, ".1f")]
        )
    rows.append(["", "base model", *_cells(names, comparison.base, comparison.base_difference), text_of(0.0, ".1f")])
    return head, rows


def _cells(names: Sequence[str], measures: Mapping[str, Estimate], difference: Estimate) -> list[str]:
    values = [text_of(measures[name].mean, ".3f") for name in names]
    return [values[0], _difference(difference), *values[1:]]


def notes(comparison: Comparison, unreadable: Mapping[str, str], remarks: Sequence[str]) -> list[str]:
    """Sentences below the table."""
    equal = [a.candidate.name for a in comparison.adapters if a.can_be_best and a.candidate.name != comparison.best]
    lines = [f"best: {comparison.best} ({LABELS[comparison.main]}, {comparison.prompts} prompts)"]
    if equal:
        lines.append(f"=: cannot be told apart from the best (95%, simultaneous): {', '.join(equal)}")
    lines += [f"!: {a.candidate.name}: {warning}" for a in comparison.adapters for warning in a.warnings]
    if not comparison.base_difference.high < 0:
        lines.append("no adapter is shown to be better than the base model")
    lines += [f"left out: {name}: {reason}" for name, reason in unreadable.items()]
    return [*lines, *remarks]


def terminal_text(comparison: Comparison, unreadable: Mapping[str, str], remarks: Sequence[str]) -> str:
    """The table and the sentences below it."""
    head, rows = table_rows(comparison)
    lines = text_table(rows, head, right=[2, 3, *range(4, len(head))])
    return "\n".join([*lines, "", *notes(comparison, unreadable, remarks)])


def comparison_json(
    comparison: Comparison, folders: Mapping[str, ImageFolder], unreadable: Mapping[str, str], remarks: Sequence[str]
) -> dict[str, Any]:
    """The content of ``grade.json``; NaN becomes null."""

    def numbers(estimate: Estimate) -> dict[str, float]:
        return {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}

    def adapter_row(adapter: GradedAdapter) -> dict[str, Any]:
        candidate = adapter.candidate
        return {
            "name": candidate.name, "source": candidate.source, "series": candidate.series, "step": candidate.step,
            "measures": {**{n: numbers(e) for n, e in adapter.measures.items()}, GRID: {"mean": adapter.grid_score}},
            "difference_to_best": numbers(adapter.difference), "can_be_best": adapter.can_be_best,
            "warnings": list(adapter.warnings), "images": folders[candidate.name].folder,
        }  # fmt: skip

    return {
        "main": comparison.main, "best": comparison.best, "method": METHOD, "prompts": comparison.prompts,
        "adapters": [adapter_row(adapter) for adapter in comparison.adapters],
        "base": {
            "measures": {name: numbers(value) for name, value in comparison.base.items()},
            "difference_to_best": numbers(comparison.base_difference),
        },
        "left_out": dict(unreadable), "remarks": list(remarks),
    }  # fmt: skip


def grade_page(
    comparison: Comparison,
    base: ImageFolder,
    folders: Mapping[str, ImageFolder],
    unreadable: Mapping[str, str],
    remarks: Sequence[str],
) -> str:
    """The page: the table with intervals, curves over the training step, and images from equal noise."""
    axis = charts.Axis.over(
        [end for a in comparison.adapters for end in (a.difference.low, a.difference.high)], include=[0.0]
    )
    head, rows = table_rows(comparison)
    differences = [*(a.difference for a in comparison.adapters), comparison.base_difference]
    view = {
        "head": head,
        "rows": [
            (row, charts.whisker(axis, d.mean, d.low, d.high, "s1", guide=0.0))
            for row, d in zip(rows, differences, strict=True)
        ],
        "axis": charts.axis_labels(axis),
        "notes": notes(comparison, unreadable, remarks),
        "method": METHOD,
        "charts": step_charts(comparison),
        "columns": ["base model", *(a.candidate.name for a in comparison.adapters)],
        "sheet": _sheet([base, *(folders[a.candidate.name] for a in comparison.adapters)]),
    }
    return render_page(TEMPLATE, view)


def step_charts(comparison: Comparison) -> list[charts.DrawnChart]:
    """A chart per training with two steps or more: the main measure and text following over the step."""
    trainings: dict[str, list[GradedAdapter]] = defaultdict(list)
    for adapter in comparison.adapters:
        if adapter.candidate.step is not None:
            trainings[adapter.candidate.series].append(adapter)
    step_plots = []
    names = dict.fromkeys([comparison.main, *(name for name in (TEXT,) if name in comparison.base)])
    for series, adapters in trainings.items():
        points = sorted((int(a.candidate.step or 0), a.measures) for a in adapters)
        lines = [
            charts.Line(LABELS[name], [step for step, _ in points], [m[name].mean for _, m in points], style, dots=True)
            for name, style in zip(names, charts.STYLES, strict=False)
        ]
        if len(points) > 1:
            step_plots.append(charts.DrawnChart.of({}, series, series, "", lines, x_label="step"))
    return step_plots


def _sheet(folders: Sequence[ImageFolder]) -> list[tuple[str, list[Picture]]]:
    """Per prompt, the image of the first seed by each adapter."""
    seed = folders[0].seeds[0]
    return [
        (
            record.prompt,
            [
                Picture.thumbnail(folder.first_image(record), f"{folder.name}, seed {seed}", SHEET_PX)
                for folder in folders
            ],
        )
        for record in folders[0].records
    ]
