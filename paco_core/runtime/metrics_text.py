"""A stage's figures as text for people: what a terminal and a log can show of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

METRICS_PER_LINE = 8
_WITH_AFTER = ("before", "change", "change_low", "change_high", "change_missing")


def as_text(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Figures as text; those before and after a training together, with the change and its interval."""
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
    """The first figures in one line, and where the others stand."""
    texts = [f"{key} {text}" for key, text in as_text(metrics).items()]
    num_omitted = len(texts) - METRICS_PER_LINE
    return ", ".join(texts[:METRICS_PER_LINE]) + (f"; {num_omitted} more in {file}" if num_omitted > 0 else "")


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
