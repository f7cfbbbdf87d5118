"""The benchmark section of a policy's model card.

Training writes the card before any benchmark can measure the policy, so :func:`pending_section` says how to get the
result. `paco push` and `paco fetch` replace that section in their copy of the card (:func:`replace_section`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paco_core.io.paths import metrics_file

HEADING = "## Benchmark"
#: Meanings of the metrics that a benchmark reports. A metric that is not in this table is listed without a meaning.
MEANINGS = {
    "consistency": "score of the reward model for the consistency of the panels, 0 to 1",
    "clip_t": "CLIP score of the image and its prompt",
    "panel_diversity": "difference between the panels; a value near 0 means copies",
    "editing": "score of the reward model for the edit, 0 to 1",
    "edit_consistency": "score of the reward model for what the edit must keep, 0 to 1",
    "edit_following": "score of the reward model for following the instruction, 0 to 1",
}
GROUND_TRUTH = (
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


def pending_section(stage: str) -> str:
    """The section of a policy that the benchmark has not measured.

    Args:
        stage: stage of the benchmark, for example ``t2is``, or ``round_t2is@1`` for a policy of a round.
    """
    name, _, item = stage.partition("@")
    file = metrics_file(name, item).as_posix()
    copies = "" if item else "\n`paco push` and `paco fetch` then write it into the card of the copy."
    return f"""{HEADING}

**This card contains no benchmark result.** The benchmark runs after the training. To measure these weights, run
`dvc repro {stage}` in the project. The result is in `{file}`.{copies}
"""


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
    meanings = [f"- `{name}`: {MEANINGS[name]}" for name in names if name in MEANINGS]
    if any(name.startswith("gold_") for name in names):
        meanings.append(f"- {GROUND_TRUTH}")
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


def replace_section(card: str, section: str) -> str:
    """The card with another benchmark section; a card without such a section stays as it is."""
    head, heading, tail = card.partition(f"\n{HEADING}\n")
    if not heading:
        return card
    _, following, remainder = tail.partition("\n## ")
    return f"{head}\n{section}{following}{remainder}"
