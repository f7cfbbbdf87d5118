"""Charts of a policy's training log, of sets and of edits, with those of the image alarm and the hack meter.

Each function takes the log, the evaluation sizes, the policy's name, and the mapping to which it adds the points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from paco_core.config.measures import COPIES, IMAGE_CONTENT, NEAR_COPIES
from paco_core.grpo.hacking import AGREEMENT
from paco_core.models.metric_meanings import METRICS, label_of
from paco_core.report.charts import Curves, DrawnChart, Line, by_size, line

if TYPE_CHECKING:
    import pandas as pd

#: Title of the metrics that a training measures on a few held-out prompts. The benchmark measures more of them.
EVALUATION = "Training evaluation"
EVALUATED = "{label}, on the few held-out cases that the training evaluates. The benchmark measures more of them."


def set_charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: Curves) -> list[DrawnChart]:
    """Rewards, their ratio, unseen prompts, diversity."""

    def chart(key: str, title: str, note: str, lines: Sequence[Line], **options: Any) -> DrawnChart:
        return DrawnChart.of(curves, f"{name}.{key}", title, note, lines, **options)

    rewards = [
        line(log, "epoch", "reward/consistency", label_of("consistency")),
        line(log, "epoch", "reward/clip_t", label_of("clip_t"), "s2"),
    ]
    ratio = [line(log, "epoch", "reward_ratio", "consistency / text match")]
    pursued = (
        f"The mean reward “{label_of('consistency')}” of an epoch divided by its mean reward “{label_of('clip_t')}”. "
        "If the policy optimized only one of them, the curve would keep rising or falling."
    )
    has_gold = f"eval/{sizes[0]}/gold_consistency" in log.columns
    evaluated = "gold_consistency" if has_gold else "consistency"
    unseen = by_size(log, sizes, evaluated)
    measured = EVALUATED.format(label=label_of(evaluated))
    diversity = [line(log, "epoch", "panel_diversity", "panel diversity")]
    collapse = "A value near 0 means identical panels: the policy has collapsed."
    return [
        chart("rewards", "Training rewards", "Mean over all images of an epoch.", rewards),
        chart("reward_ratio", "Reward ratio: consistency / text match", pursued, ratio),
        chart("unseen", EVALUATION, measured, unseen, bounds=(0.0, 1.0)),
        chart("panel_diversity", "Panel diversity", collapse, diversity, bounds=(0.0, 0.1)),
        *_content_charts(log, sizes, name, curves),
        *_hack_meter_charts(log, sizes, name, curves),
    ]


def edit_charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: Curves) -> list[DrawnChart]:
    """The reward, unseen pictures, the distance from the reference."""

    def chart(key: str, title: str, note: str, lines: Sequence[Line], **options: Any) -> DrawnChart:
        return DrawnChart.of(curves, f"{name}.{key}", title, note, lines, **options)

    rewards = [line(log, "epoch", "reward/editing", label_of("editing"))]
    has_gold = f"eval/{sizes[0]}/gold_editing" in log.columns
    evaluated = "gold_editing" if has_gold else "editing"
    unseen = by_size(log, sizes, evaluated)
    measured = EVALUATED.format(label=label_of(evaluated))
    distance = [line(log, "epoch", "reference_distance", "distance from the reference")]
    collapse = "A value near 0 means copies of the source images: the policy has collapsed."
    return [
        chart("rewards", "Training reward", "Mean over all edits of an epoch.", rewards),
        chart("unseen", EVALUATION, measured, unseen, bounds=(0.0, 1.0)),
        chart("reference_distance", "Distance from the reference", collapse, distance, bounds=(0.0, 0.1)),
        *_content_charts(log, sizes, name, curves),
        *_hack_meter_charts(log, sizes, name, curves),
    ]


def _content_charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: Curves) -> Iterator[DrawnChart]:
    """Edges, colors and brightness at the largest size as shares of their values at the start, and near-copies.

    A log of an earlier version of paco lacks these metrics.
    """
    places = {f"eval/{max(sizes)}/{measure}": measure for measure in IMAGE_CONTENT if measure != NEAR_COPIES}
    if log.columns.isin(places).any():
        shares = log.assign(**{place: log[place] / log[place].iloc[0] for place in places if log[place].iloc[0]})
        lines = [
            line(shares, "epoch", place, label_of(measure).lower(), style, dots=True)
            for (place, measure), style in zip(places.items(), ("s1", "s2", "s3"), strict=True)
        ]
        note = (
            f"Means over the held-out images at {max(sizes)} px, as shares of the values before training. If details "
            "or backgrounds vanish, edge density and color entropy fall."
        )
        yield DrawnChart.of(curves, f"{name}.content", "Image content", note, lines, bounds=(0.0, 1.2), guide=(1.0, ""))
    for measure in (NEAR_COPIES, COPIES):
        if f"eval/{max(sizes)}/{measure}" in log.columns:
            meaning, lines = METRICS[measure], by_size(log, sizes, measure)
            note = f"{meaning.meaning[0].upper()}{meaning.meaning[1:]}."
            yield DrawnChart.of(curves, f"{name}.{measure}", meaning.label, note, lines, bounds=(0.0, 1.0))


def _hack_meter_charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: Curves) -> Iterator[DrawnChart]:
    """Gains by both judges and the lower end of the drift at the largest size, agreement and grid score.

    None if the training had no hack meter.
    """
    side = max(sizes)
    place = f"eval/{side}"
    if f"{place}/drift" not in log.columns:
        return
    gains = [
        line(log, "epoch", f"{place}/trained_gain", "by the training reward model", dots=True),
        line(log, "epoch", f"{place}/held_out_gain", "by the held-out reward model", "s2", dots=True),
        line(log, "epoch", f"{place}/drift_low", "drift, lower end", "s3", dots=True),
    ]
    note = (
        f"Held-out prompts at {side} px, in standard deviations of each model's scores before training. If the lower "
        "end of the drift is above 0 and the held-out model sees no gain, the policy over-optimizes its reward model."
    )
    yield DrawnChart.of(curves, f"{name}.gains", "Gain by two reward models", note, gains, guide=(0.0, ""))
    if AGREEMENT in log.columns:  # else it learnt from pictures that were ranked before: no judge scored samples
        agreement = [line(log, "epoch", AGREEMENT, "of the two reward models")]
        note = "Correlation of their scores within the samples of a prompt, averaged over an epoch (-1 to 1)."
        key, title = f"{name}.{AGREEMENT}", "Agreement of two reward models"
        yield DrawnChart.of(curves, key, title, note, agreement, bounds=(0.0, 1.0))
    grid = by_size(log, sizes, "grid_score")
    note = "How strongly one frequency stands out against the images before training, in nats. 0: no artifact."
    yield DrawnChart.of(curves, f"{name}.grid_score", "Grid score", note, grid, bounds=(0.0, 3.0))
