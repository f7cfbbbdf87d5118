"""Charts of a policy's training log, of sets and of edits, with those of the hack meter.

Each function takes the log, the evaluation sizes, the policy's name, and the mapping to which it adds the points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paco_core.grpo.hacking import AGREEMENT
from paco_core.report.charts import Curves, DrawnChart, Line, by_size, line

if TYPE_CHECKING:
    import pandas as pd


def set_charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: Curves) -> list[DrawnChart]:
    """Rewards, their ratio, unseen prompts, diversity."""

    def chart(key: str, title: str, note: str, lines: Sequence[Line], **options: Any) -> DrawnChart:
        return DrawnChart.of(curves, f"{name}.{key}", title, note, lines, **options)

    rewards = [
        line(log, "epoch", "reward/consistency", "judge’s consistency"),
        line(log, "epoch", "reward/clip_t", "text match (CLIP-T)", "s2"),
    ]
    ratio = [line(log, "epoch", "reward_ratio", "consistency / text match")]
    pursued = "If training pursued only one of the rewards, this line would keep climbing."
    unseen = by_size(log, sizes, "gold_consistency")
    measured = "Gold consistency on prompts it never trained on; the recogniser gives no reward."
    if not any(line.points() for line in unseen):
        unseen = by_size(log, sizes, "consistency")
        measured = "The judge’s consistency on prompts it never trained on."
    diversity = [line(log, "epoch", "panel_diversity", "panel diversity")]
    collapse = "Near 0 the panels would be one picture four times: the collapse to watch for."
    return [
        chart("rewards", "Rewards", "Mean over all pictures of an epoch.", rewards),
        chart("reward_ratio", "Reward ratio", pursued, ratio),
        chart("unseen", "Unseen prompts", measured, unseen, bounds=(0.0, 1.0)),
        chart("panel_diversity", "Panel diversity", collapse, diversity, bounds=(0.0, 0.1)),
        *_hack_meter_charts(log, sizes, name, curves),
    ]


def edit_charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: Curves) -> list[DrawnChart]:
    """The reward, unseen pictures, the distance from the reference."""

    def chart(key: str, title: str, note: str, lines: Sequence[Line], **options: Any) -> DrawnChart:
        return DrawnChart.of(curves, f"{name}.{key}", title, note, lines, **options)

    rewards = [line(log, "epoch", "reward/editing", "judge’s editing score")]
    is_gold = f"eval/{sizes[0]}/gold_editing" in log.columns
    unseen = by_size(log, sizes, "gold_editing" if is_gold else "editing")
    measured = f"{'Gold editing' if is_gold else 'Judge’s editing score'} on pictures it never trained on."
    distance = [line(log, "epoch", "reference_distance", "distance from the reference")]
    collapse = "Near 0 the edits would be copies: the collapse to watch for."
    return [
        chart("rewards", "Reward", "Mean over all edits of an epoch.", rewards),
        chart("unseen", "Unseen pictures", measured, unseen, bounds=(0.0, 1.0)),
        chart("reference_distance", "Distance from the reference", collapse, distance, bounds=(0.0, 0.1)),
        *_hack_meter_charts(log, sizes, name, curves),
    ]


def _hack_meter_charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: Curves) -> Iterator[DrawnChart]:
    """Gains by both judges and the lower end of the drift at the largest size, agreement, grid score and near-copies.

    None if the training had no hack meter.
    """
    side = max(sizes)
    place = f"eval/{side}"
    if f"{place}/drift" not in log.columns:
        return
    gains = [
        line(log, "epoch", f"{place}/trained_gain", "by the judge that trains", dots=True),
        line(log, "epoch", f"{place}/held_out_gain", "by the held-out judge", "s2", dots=True),
        line(log, "epoch", f"{place}/drift_low", "drift, lower end", "s3", dots=True),
    ]
    note = (
        f"Unseen prompts at {side} px, in standard deviations of each judge's scores before training. A lower end "
        "of the drift above 0, while the held-out judge sees no gain, means that the policy exploits its judge."
    )
    yield DrawnChart.of(curves, f"{name}.gains", "Gain by two judges", note, gains, guide=(0.0, ""))
    if AGREEMENT in log.columns:  # else it learnt from pictures that were ranked before: no judge scored samples
        agreement = [line(log, "epoch", AGREEMENT, "of the two judges")]
        note = "Correlation of their scores of the samples of one prompt, mean of an epoch's prompts, -1 to 1."
        key, title = f"{name}.{AGREEMENT}", "Agreement of two judges"
        yield DrawnChart.of(curves, key, title, note, agreement, bounds=(0.0, 1.0))
    grid, copies = by_size(log, sizes, "grid_score"), by_size(log, sizes, "near_copies")
    note = "How far one frequency stands out against the pictures before training, in nats; 0 is nowhere."
    yield DrawnChart.of(curves, f"{name}.grid_score", "Grid score", note, grid, bounds=(0.0, 3.0))
    note = "Share of panel pairs, or of edits and their references, that hardly differ."
    yield DrawnChart.of(curves, f"{name}.near_copies", "Near-copies", note, copies, bounds=(0.0, 1.0))
