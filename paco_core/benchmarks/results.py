"""What the benchmarks share when they write their results."""

from __future__ import annotations

import math
from typing import Any

from paco_core.benchmarks.statistics import Comparison, Estimate


def jsonable(value: Any) -> Any:
    """The same tree with NaN and infinities as None, for JSON has neither."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def flat(name: str, value: Estimate | Comparison) -> dict[str, float]:
    """``name``, ``name_low``, ``name_high`` and, for a comparison, ``name_p``."""
    found = value.difference if isinstance(value, Comparison) else value
    metrics = {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
    return {**metrics, f"{name}_p": value.p_value} if isinstance(value, Comparison) else metrics
