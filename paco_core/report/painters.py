"""The part of the page about policies that paint sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.report.curves import Chart, by_size, keep, line
from paco_core.report.trained import Curves, Kind, Measure

if TYPE_CHECKING:
    import pandas as pd

MEASURES = {
    "gold_consistency": Measure(
        "Gold consistency",
        "share of panel pairs that show the same character in the same style, read by the recogniser",
    ),
    "gold_following": Measure(
        "Gold prompt following", "share of requested attributes that were drawn, read by the recogniser"
    ),
    "consistency": Measure(
        "Judge's consistency", "mean probability of “Yes” over the panel pairs; a training reward", rewarded=True
    ),
    "clip_t": Measure(
        "Text match (CLIP-T)", "similarity of each panel and its own sentence; a training reward", rewarded=True
    ),
    "panel_diversity": Measure("Panel diversity", "how different the panels are; 0 would be one picture four times"),
}


def _charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: Curves) -> list[Chart]:
    """Rewards, their ratio, unseen prompts, diversity."""
    rewards = [
        line(log, "epoch", "reward/consistency", "judge’s consistency"),
        line(log, "epoch", "reward/clip_t", "text match (CLIP-T)", "s2"),
    ]
    ratio = [line(log, "epoch", "reward_ratio", "consistency / text match")]
    unseen = by_size(log, sizes, "gold_consistency")
    measured = "Gold consistency on prompts it never trained on; the recogniser gives no reward."
    if not any(line.points() for line in unseen):
        unseen = by_size(log, sizes, "consistency")
        measured = "The judge’s consistency on prompts it never trained on."
    diversity = [line(log, "epoch", "panel_diversity", "panel diversity")]
    lists = {"rewards": rewards, "reward_ratio": ratio, "unseen": unseen, "panel_diversity": diversity}
    for key, lines in lists.items():
        keep(curves, f"{name}.{key}", lines)
    return [
        Chart.of("Rewards", "Mean over all pictures of an epoch.", rewards, x_label="epoch"),
        Chart.of(
            "Reward ratio",
            "If training pursued only one of the rewards, this line would keep climbing.",
            ratio,
            x_label="epoch",
        ),
        Chart.of("Unseen prompts", measured, unseen, x_label="epoch", bounds=(0.0, 1.0)),
        Chart.of(
            "Panel diversity",
            "Near 0 the panels would be one picture four times: the collapse to watch for.",
            diversity,
            x_label="epoch",
            bounds=(0.0, 0.1),
        ),
    ]


PAINTERS = Kind(paths.T2IS.name, "the comparison before and after", ("prompts",), MEASURES, _charts)
