"""The metrics of a stage as text, for a terminal and a log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

METRICS_PER_LINE, LINE_LENGTH = 8, 160
_WITH_AFTER = ("before", "change", "change_low", "change_high", "change_missing")


def as_text(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Metrics as text. Those before and after a training are one text, with the change and its interval."""
    texts: dict[str, str] = {}
    for key, value in metrics.items():
        name, _, end = key.rpartition(".")
        paired = f"{name}.before" in metrics and f"{name}.after" in metrics
        if paired and end == "after":
            texts[name] = f"{_short(metrics[f'{name}.before'])} -> {_short(value)}{_change(metrics, name)}"
        elif not (paired and end in _WITH_AFTER):
            texts[key] = _short(value)
    return texts


def metrics_line(metrics: Mapping[str, Any], file: str) -> str:
    """The first metrics in one line, and the file that contains the rest. There is at least one metric in the line."""
    texts = [f"{key} {text}" for key, text in as_text(metrics).items()]
    lengths = accumulate(len(text) + len(", ") for text in texts)
    num_fitting = max(1, sum(length <= LINE_LENGTH for length in list(lengths)[:METRICS_PER_LINE]))
    num_omitted = len(texts) - num_fitting
    return ", ".join(texts[:num_fitting]) + (f"; {num_omitted} more in {file}" if num_omitted > 0 else "")


def _change(metrics: Mapping[str, Any], name: str) -> str:
    change, low, high = (metrics.get(f"{name}.change{end}") for end in ("", "_low", "_high"))
    if not _is_known(change):
        return ""
    interval = f", 95% interval {low:+.3f} to {high:+.3f}" if _is_known(low) and _is_known(high) else ""
    missing = f", {metrics[f'{name}.change_missing']:g} missing" if f"{name}.change_missing" in metrics else ""
    return f" ({change:+.3f}{interval}{missing})"


def _is_known(value: Any) -> bool:
    """Whether there is a number: of a single value the interval is NaN."""
    return value is not None and not math.isnan(value)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
