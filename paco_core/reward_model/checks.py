"""Checks of a reward model: the merged model equals the trained one, and it is better than its base.

Each check reads the metrics file of a stage. pytest, the command line and Dagster call the same checks.
"""

from __future__ import annotations

import math
from pathlib import Path

from paco_core.io.check_report import CheckFinding, check, skipped
from paco_core.io.files import read_json


@check("ERROR")
def merged_equals_adapter(metrics: Path) -> CheckFinding:
    """Base + adapter and the merged folder give the same scores. A failure blocks later stages.

    Args:
        metrics: metrics file of the stage ``reward_merged``.
    """
    figures = read_json(metrics)
    kind, key = ("held-out", "pairs") if "pairs" in figures else ("drawn", "drawn_pairs")
    margins = {name: math.nan if (value := figures[f"margin.{name}"]) is None else value for name in ("worst", "mean")}
    bounds = {name: (value, figures[f"margin.{name}_allowed"]) for name, value in margins.items()}
    text = ", ".join(f"{name} {value:.2g} (allowed {allowed:g})" for name, (value, allowed) in bounds.items())
    return CheckFinding(
        all(value <= allowed for value, allowed in bounds.values()),
        f"difference of the log-odds of Yes over {figures[key]:.0f} {kind} pairs: {text}",
        {**margins, key: figures[key]},
    )


@check("ERROR")
def reward_beats_base(metrics: Path) -> CheckFinding:
    """Training lifted the held-out decision accuracy by more than twice the standard error of the paired gain.

    A reward model that became worse by the same amount blocks later stages, so no GPU time is spent on its policies.
    The check is skipped for published weights without validation pairs.

    Args:
        metrics: metrics file of the stage ``reward_lora``.
    """
    figures = read_json(metrics)
    if "accuracy" not in figures:
        return skipped("there are no validation pairs, so the published weights were not validated here")
    gain, error = figures.get("accuracy_gain"), figures.get("accuracy_gain_error")
    if gain is None or error is None:
        return CheckFinding(False, "no validation pair was scored before and after training", {}, "WARN")
    before, after = figures["base.accuracy"], figures["accuracy"]
    missing = f", {figures['accuracy_gain_missing']:.0f} missing" if "accuracy_gain_missing" in figures else ""
    return CheckFinding(
        gain > 2 * error,
        f"held-out accuracy {before:.3f} -> {after:.3f} on {figures['pairs']:.0f} pairs{missing} "
        f"(gain {gain:+.3f}, its standard error {error:.3f})",
        {"base_accuracy": before, "accuracy": after, "gain": gain},
        "ERROR" if gain < -2 * error else "WARN",
    )
