"""The part of the page about policies that edit pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.io import paths
from paco_core.io.files import read_json
from paco_core.report.curves import Chart, by_size, keep, line
from paco_core.report.figures import Figures
from paco_core.report.trained import Curves, Kind, Measure

if TYPE_CHECKING:
    import pandas as pd

MEASURES = {
    "gold_editing": Measure(
        "Gold editing", "share of edits that did what was asked and changed nothing else, read by the recogniser"
    ),
    "gold_reached": Measure("Gold: asked trait reached", "share of edits that show the requested change"),
    "gold_kept": Measure("Gold: the rest kept", "share of the other traits that stayed as they were"),
    "editing": Measure(
        "Judge’s editing score", "root of the product of its two answers; the training reward", rewarded=True
    ),
}


def _charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: Curves) -> list[Chart]:
    """The reward, unseen pictures, the distance from the reference."""
    rewards = [line(log, "epoch", "reward/editing", "judge’s editing score")]
    measure = "gold_editing" if f"eval/{sizes[0]}/gold_editing" in log.columns else "editing"
    unseen = by_size(log, sizes, measure)
    distance = [line(log, "epoch", "reference_distance", "distance from the reference")]
    for key, lines in {"rewards": rewards, "unseen": unseen, "reference_distance": distance}.items():
        keep(curves, f"{name}.{key}", lines)
    words = f"{MEASURES[measure].name} on pictures it never trained on."
    return [
        Chart.of("Reward", "Mean over all edits of an epoch.", rewards, x_label="epoch"),
        Chart.of("Unseen pictures", words, unseen, x_label="epoch", bounds=(0.0, 1.0)),
        Chart.of(
            "Distance from the reference",
            "Near 0 the edits would be copies: the collapse to watch for.",
            distance,
            x_label="epoch",
            bounds=(0.0, 0.1),
        ),
    ]


EDITORS = Kind(paths.GEDIT.name, "the edits before and after", ("prompts", "pictures"), MEASURES, _charts)


def published(root: Path, figures: Figures) -> list[dict[str, Any]]:
    """Rows that others published on GEdit-Bench."""
    path = root / paths.GEDIT / "results.json"
    rows: list[dict[str, Any]] = read_json(path)["published"] if path.is_file() else []
    for row in rows:
        figures.add_all(f"published.gedit.{row['model']}", row["figures"])
    return rows
