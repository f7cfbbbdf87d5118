"""What the benchmarks share when they write their results."""

from __future__ import annotations

from paco_core.benchmarks.statistics import Comparison, Estimate


def flat(name: str, value: Estimate | Comparison) -> dict[str, float]:
    """``name``, ``name_low``, ``name_high`` and, for a comparison, ``name_p``."""
    found = value.difference if isinstance(value, Comparison) else value
    metrics = {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}
    return {**metrics, f"{name}_p": value.p_value} if isinstance(value, Comparison) else metrics
