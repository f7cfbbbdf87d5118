"""Whether a policy exploits its judge, as the hack meter of its training measured it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paco_core.grpo.hacking import AGREEMENT
from paco_core.report.charts import Curves, DrawnChart, by_size, line

if TYPE_CHECKING:
    import pandas as pd


def hack_meter_charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: Curves) -> list[DrawnChart]:
    """Gains by both judges and the lower end of the drift at the largest size, agreement, grid score and near-copies.

    None where the training had no hack meter.
    """
    side = max(sizes)
    place = f"eval/{side}"
    if f"{place}/drift" not in log.columns:
        return []
    gains = [
        line(log, "epoch", f"{place}/trained_gain", "by the judge that trains", dots=True),
        line(log, "epoch", f"{place}/held_out_gain", "by the held-out judge", "s2", dots=True),
        line(log, "epoch", f"{place}/drift_low", "drift, lower end", "s3", dots=True),
    ]
    grid, copies = by_size(log, sizes, "grid_score"), by_size(log, sizes, "near_copies")
    drawn = [
        DrawnChart.kept(
            curves,
            f"{name}.gains",
            "Gain by two judges",
            f"Unseen prompts at {side} px, in standard deviations of each judge's scores before training. A lower end "
            "of the drift above 0, while the held-out judge sees no gain, means that the policy exploits its judge.",
            gains,
            guide=(0.0, ""),
        )
    ]
    if AGREEMENT in log.columns:  # else it learnt from pictures that were ranked before: no judge scored samples
        agreed = [line(log, "epoch", AGREEMENT, "of the two judges")]
        about = "Correlation of their scores of the samples of one prompt, mean of an epoch's prompts, -1 to 1."
        key = f"{name}.{AGREEMENT}"
        drawn += [DrawnChart.kept(curves, key, "Agreement of two judges", about, agreed, bounds=(0.0, 1.0))]
    return [
        *drawn,
        DrawnChart.kept(
            curves,
            f"{name}.grid_score",
            "Grid score",
            "How far one frequency stands out against the pictures before training, in nats; 0 is nowhere.",
            grid,
            bounds=(0.0, 3.0),
        ),
        DrawnChart.kept(
            curves,
            f"{name}.near_copies",
            "Near-copies",
            "Share of panel pairs, or of edits and their references, that hardly differ.",
            copies,
            bounds=(0.0, 1.0),
        ),
    ]
