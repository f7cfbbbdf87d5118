"""Metrics of a stage as metadata of Dagster: the headline first, then tables, each number next to its comparison.

Two namings are known, both of DVC metrics files with dotted names: ``x.before``, ``x.after`` and ``x.change``, and an
``x`` with ``x_low`` and ``x_high``, the ends of its interval (``x_p`` is its test's p). Names that differ only in what
comes before the last dot, such as ``reward.accuracy`` and ``base.accuracy``, are rows of one table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import dagster as dg

from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject, ResolvedStage
from dvc_project.reading import read_data

Number = int | float
#: Metadata with every metric unrounded, by its dotted name.
ALL_METRICS = "dvc/figures"
_METRICS = {".json", ".yaml", ".yml", ".toml"}
_DIGITS, _EXACT = 4, 2**53  # above it, not every whole number is a float
_NOTES = ("dvc/", "dagster/", "rows/")
_PAIRED = ("before", "after", "change")
_INTERVAL = ("low", "high", "p")


def read_metrics(project: DvcProject, stage: ResolvedStage) -> dict[str, Number]:
    """The numbers of a stage's metrics files by dotted name; nulls, words and unreadable files are left out."""
    metrics: dict[str, Number] = {}
    for out in stage.outs:
        path = project.root / out.path
        if out.kind == "metrics" and path.suffix in _METRICS and path.is_file():
            try:
                metrics |= _numbers(read_data(path))
            except DvcProjectError:
                continue
    return metrics


def arrange_metrics(metrics: Mapping[str, Number], headline: Sequence[Sequence[str]], name: str) -> dict[str, Any]:
    """Metadata that shows metrics.

    Args:
        metrics: values by dotted name.
        headline: metrics to show first, each by name patterns of which the first that fits any counts. They are
            single numbers, so Dagster draws them as curves over materializations.
        name: the row of metrics without a dot, in a table that compares them with others.
    """
    first = [key for patterns in headline for key in _matching(metrics, patterns)]
    remaining = dict(metrics)
    tables = {
        "before_and_after": _before_and_after(remaining),
        "with_intervals": _with_intervals(remaining),
        "side_by_side": _side_by_side(remaining, name),
    }
    ordered = {key: metrics[key] for key in [*first, *remaining]}
    return {
        **{_label(key): rounded(value) for key, value in ordered.items()},
        **{key: _table(rows) for key, rows in tables.items() if rows},
        **({ALL_METRICS: dg.MetadataValue.json(dict(metrics))} if metrics else {}),
    }


def notes_last(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The same entries, those of DVC and Dagster last."""
    return dict(sorted(metadata.items(), key=lambda item: item[0].startswith(_NOTES)))


def rounded(value: Number) -> Number:
    """A number to four significant digits; a whole one as such."""
    return int(value) if value == value // 1 and abs(value) < _EXACT else float(f"{value:.{_DIGITS}g}")


def _label(key: str) -> str:
    """Short, for a page of Dagster writes a long name over its value."""
    return f"Δ {key.removesuffix('.change')}" if key.endswith(".change") else key


def _matching(metrics: Mapping[str, Number], patterns: Sequence[str]) -> list[str]:
    for pattern in patterns:
        if keys := [key for key in metrics if fnmatchcase(key, pattern)]:
            return keys
    return []


def _before_and_after(remaining: dict[str, Number]) -> list[dict[str, Any]]:
    """One row per metric with values before and after. Removes these metrics from ``remaining``."""
    rows = []
    for start in [key.removesuffix(".before") for key in remaining if key.endswith(".before")]:
        if f"{start}.after" in remaining:
            row = {end: remaining.pop(f"{start}.{end}") for end in _PAIRED if f"{start}.{end}" in remaining}
            rows.append({"figure": start, **row, **_interval(remaining, f"{start}.change")})
    return rows


def _with_intervals(remaining: dict[str, Number]) -> list[dict[str, Any]]:
    rows = []
    for key in [key for key in remaining if f"{key}_low" in remaining and f"{key}_high" in remaining]:
        rows.append({"figure": key, "value": remaining.pop(key), **_interval(remaining, key)})
    return rows


def _interval(remaining: dict[str, Number], key: str) -> dict[str, Number]:
    return {end: remaining.pop(f"{key}_{end}") for end in _INTERVAL if f"{key}_{end}" in remaining}


def _side_by_side(remaining: dict[str, Number], name: str) -> list[dict[str, Any]]:
    """A row for each of those that were measured alike, a column a measure."""
    measured: dict[str, list[str]] = {}
    for key in remaining:
        owner, _, measure = key.rpartition(".")
        measured.setdefault(owner, []).append(measure)
    rows = []
    for owner in list(measured):
        shared = [m for m in measured[owner] if any(m in them for other, them in measured.items() if other != owner)]
        if shared:
            starts = f"{owner}." if owner else ""
            rows.append({"of": owner or name, **{measure: remaining.pop(f"{starts}{measure}") for measure in shared}})
    return rows


def _table(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Numbers rounded; what a row has not is left empty."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    texts = [
        dg.TableRecord(
            {c: rounded(row[c]) if isinstance(row.get(c), (int, float)) else row.get(c, "") for c in columns}
        )
        for row in rows
    ]
    kinds = [dg.TableColumn(column, "string" if column in ("figure", "of") else "number") for column in columns]
    return dg.MetadataValue.table(texts, dg.TableSchema(kinds))


def _numbers(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Number]:
    metrics: dict[str, Number] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            metrics |= _numbers(value, f"{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            metrics[name] = value
    return metrics
