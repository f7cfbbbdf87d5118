"""The benchmark section of a policy's model card with a result: a table of changes, and what each metric means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paco_core.models.benchmark_section import HEADING
from paco_core.models.metric_meanings import GROUND_TRUTH, METRICS

GROUND_TRUTH_NOTE = (
    "`gold_*` metrics are the ground truth of the demo world, by its recognizer. The policy was not trained on "
    "them, but the recognizer's rankings trained the reward model."
)


@dataclass(frozen=True)
class MetricChange:
    """A metric before and after training: two means, and the mean change with its 95% interval."""

    before: float
    after: float
    change: float
    low: float
    high: float


def result_section(policy: str, stage: str, goal: str, metrics: Mapping[str, float | None]) -> str | None:
    """The section with the result of a policy, or None if the metrics contain no result of it.

    Args:
        policy: name of the recipe.
        stage: stage of the benchmark, for example ``t2is``.
        goal: the metric that the training should raise.
        metrics: content of the benchmark's metrics file: ``<policy>.px<size>.<metric>.<before|after|change|...>``.
    """
    changes = metric_changes(policy, metrics)
    if not changes:
        return None
    sides = sorted({side for side, _ in changes})
    rows = [
        f"| {side} | `{name}` | {c.before:.4f} | {c.after:.4f} | {c.change:+.4f} | {c.low:+.4f} to {c.high:+.4f} |"
        for (side, name), c in sorted(changes.items(), key=lambda entry: (entry[0][0], entry[0][1] != goal))
    ]
    prompts = metrics.get("prompts")
    sample = f"{prompts:.0f} prompts" if prompts else "prompts"
    names = dict.fromkeys(name for _, name in changes)
    meanings = [f"- `{name}`: {METRICS[name].meaning}" for name in names if name in METRICS]
    if any(name.startswith(GROUND_TRUTH) for name in names):
        meanings.append(f"- {GROUND_TRUTH_NOTE}")
    return "\n".join(
        [
            HEADING,
            "",
            f"The stage `{stage}` generates images for {sample} that training did not use, with the base model and",
            "with this adapter. Both use the same seeds. Intervals are 95% intervals of the mean change over prompts.",
            "",
            *([_conclusion(goal, sides[-1], changes[sides[-1], goal]), ""] if (sides[-1], goal) in changes else []),
            "| pixels | metric | base model | with this adapter | change | 95% interval |",
            "|---:|---|---:|---:|---:|---:|",
            *rows,
            "",
            *meanings,
            "",
        ]
    )


def _conclusion(goal: str, side: int, change: MetricChange) -> str:
    """The result of the goal in a sentence."""
    numbers = f"({change.before:.4f} to {change.after:.4f}, change {change.change:+.4f}, 95% interval "
    numbers += f"{change.low:+.4f} to {change.high:+.4f})"
    if change.low > 0:
        return f"**`{goal}` at {side} px improves** {numbers}."
    if change.high < 0:
        return f"**`{goal}` at {side} px gets worse** {numbers}."
    return f"**The benchmark cannot tell whether `{goal}` at {side} px changes:** the interval contains zero {numbers}."


def metric_changes(policy: str, metrics: Mapping[str, float | None]) -> dict[tuple[int, str], MetricChange]:
    """The changes of a policy by (pixels, metric), without those of single layouts and those without an interval."""
    changes = {}
    for key in metrics:
        parts = key.removeprefix(f"{policy}.").split(".")
        if not key.startswith(f"{policy}.px") or len(parts) != 3 or parts[2] != "change":
            continue
        stem = key.removesuffix(".change")
        values = [metrics.get(f"{stem}.{end}") for end in ("before", "after", "change", "change_low", "change_high")]
        numbers = [value for value in values if value is not None and math.isfinite(value)]
        if len(numbers) == len(values):
            changes[int(parts[0].removeprefix("px")), parts[1]] = MetricChange(*numbers)
    return changes
