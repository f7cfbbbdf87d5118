"""The part of the page about edits: which of two edits of a picture is better?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paco_core.io import paths
from paco_core.io.files import read_json
from paco_core.report import charts
from paco_core.report.charts import Axis
from paco_core.report.figures import Figures
from paco_core.report.sections import MethodRow, Missing, Skipped

#: What an edit is judged by: key -> words.
DIMENSIONS = {
    "prompt_following": "Does what was asked",
    "consistency": "Leaves the rest alone",
    "overall": "Both at once",
}
CHANCE = 0.5  # of two edits


@dataclass(frozen=True)
class Rival:
    """Another judge, beside the trained one."""

    key: str  # of the differences
    label: str
    dimensions: list[str]  # in which both judge


@dataclass(frozen=True)
class EditJudge:
    """The editing benchmark: one table a dimension of what is judged."""

    dimensions: dict[str, str]
    rows: dict[str, list[MethodRow]]  # by dimension
    axis: str
    rivals: list[Rival]
    published: list[dict[str, Any]]
    tie_rule: str


def edit_judge(root: Path, figures: Figures) -> EditJudge | Missing | Skipped:
    """The editing benchmark's tables and plots."""
    if (reason := Skipped.of("the editing benchmark", root / paths.EDIT_REWARD)) is not None:
        return reason
    path = root / paths.EDIT_REWARD / "results.json"
    if not path.is_file():
        return Missing("the editing benchmark", paths.EDIT_REWARD / "results.json")
    results = read_json(path)
    figures.add_all(paths.EDIT_REWARD.name, {k: results[k] for k in ("cases", "methods", "comparisons")})
    methods: dict[str, Any] = results["methods"]
    axis = Axis.over([0.0, 1.0])
    rows: dict[str, list[MethodRow]] = {dimension: [] for dimension in DIMENSIONS}
    for name, method in methods.items():
        style = {"reward": "s1", "base": "s2", "clip_i": "s3"}.get(name, "s4")
        for dimension, found in rows.items():
            value = method["accuracy"][dimension]["strict"]
            if value["mean"] is None:  # CLIP-I reads no instruction
                continue
            plot = charts.whisker(axis, value["mean"], value["low"], value["high"], style, guide=CHANCE)
            key = f"edit_reward.methods.{name}.accuracy.{dimension}.strict"
            found.append(MethodRow(key, method["label"], style, plot))
    rivals = [
        Rival(
            f"edit_reward.comparisons.{name}",
            methods[name.split(" - ")[1]]["label"],
            [dimension for dimension, value in found.items() if value["mean"] is not None],
        )
        for name, found in results["comparisons"].items()
    ]
    published = results.get("published", [])
    for row in published:
        figures.add_all(f"published.edits.{row['model']}", row["figures"])
    return EditJudge(DIMENSIONS, rows, charts.axis_labels(axis), rivals, published, results["tie_rule"])
