"""Checks on the reward's figures: is the merged model the trained one, and is it better than its base?

Each reads a stage's metrics file and is pure; pytest, the command line and Dagster call the same ones.
"""

from __future__ import annotations

import math
from pathlib import Path

from paco_core.io.check_report import CheckFinding, check, skipped
from paco_core.io.files import read_json


@check("ERROR")
def merged_equals_adapter(metrics: Path) -> CheckFinding:
    """Base + adapter and the merged folder give the same scores; blocks what follows.

    Args:
        metrics: metrics file of the stage ``reward_merged``.
    """
    figures = read_json(metrics)
    kind, key = ("held-out", "pairs") if "pairs" in figures else ("drawn", "drawn_pairs")
    found = {name: math.nan if (value := figures[f"margin.{name}"]) is None else value for name in ("worst", "mean")}
    bounds = {name: (value, figures[f"margin.{name}_allowed"]) for name, value in found.items()}
    text = ", ".join(f"{name} {value:.2g} (allowed {allowed:g})" for name, (value, allowed) in bounds.items())
    return CheckFinding(
        all(value <= allowed for value, allowed in bounds.values()),
        f"difference of the log-odds of Yes over {figures[key]:.0f} {kind} pairs: {text}",
        {**found, key: figures[key]},
    )


@check("ERROR")
def reward_beats_base(metrics: Path) -> CheckFinding:
    """Training lifted the held-out decision accuracy by more than twice its standard error.

    A reward that training made worse by as much blocks what follows: no GPU hour is spent on its policies. Published
    weights are skipped where no pairs are at hand to validate them.

    Args:
        metrics: metrics file of the stage ``reward_lora``.
    """
    figures = read_json(metrics)
    if "accuracy" not in figures:
        return skipped("there are no validation pairs, so the published weights were not validated here")
    before, after, pairs = figures["base.accuracy"], figures["accuracy"], figures["pairs"]
    error = math.sqrt((before * (1 - before) + after * (1 - after)) / pairs)
    return CheckFinding(
        after - before > 2 * error,
        f"held-out accuracy {before:.3f} -> {after:.3f} on {pairs:.0f} pairs (standard error of the gain {error:.3f})",
        {"base_accuracy": before, "accuracy": after, "gain": after - before},
        "ERROR" if after - before < -2 * error else "WARN",
    )
