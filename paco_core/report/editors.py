"""The part of the page about editing policies: what they practised, edits before and after, measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core import paths
from paco_core.files import read_json
from paco_core.report.figures import Figures
from paco_core.report.pictures import Picture, read_png
from paco_core.report.sections import Chart, MeasureTable, Missing, keep, line, measure_tables, read_log

if TYPE_CHECKING:
    import pandas as pd

MEASURES: dict[str, tuple[str, str, bool]] = {
    "gold_editing": (
        "Gold editing",
        "share of edits that did what was asked and changed nothing else, read by the recogniser",
        False,
    ),
    "gold_reached": ("Gold: asked trait reached", "share of edits that show what was asked for", False),
    "gold_kept": ("Gold: the rest kept", "share of the other traits that stayed as they were", False),
    "editing": ("Judge’s editing score", "root of the product of its two answers; the training reward", True),
}


@dataclass(frozen=True)
class EditSample:
    """One instruction at one size: its picture, and the edit before and after training."""

    instruction: str
    size: int
    reference: Picture
    before: Picture
    after: Picture
    key: str


@dataclass(frozen=True)
class EditorPart:
    """What one editing policy learnt."""

    name: str
    train_size: int
    charts: list[Chart]
    samples: list[EditSample]
    tables: list[MeasureTable]


def _charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: dict[str, Any]) -> list[Chart]:
    rewards = [line(log, "epoch", "reward/editing", "judge’s editing score")]
    styles = ("s1", "s2", "s3", "s4")
    measure = "gold_editing" if f"eval/{sizes[0]}/gold_editing" in log.columns else "editing"
    unseen = [
        line(log, "epoch", f"eval/{size}/{measure}", f"{size} px", style, dots=True)
        for size, style in zip(sizes, styles, strict=False)
    ]
    distance = [line(log, "epoch", "reference_distance", "distance from the reference")]
    for key, lines in {"rewards": rewards, "unseen": unseen, "reference_distance": distance}.items():
        keep(curves, f"{name}.{key}", lines)
    words = f"{MEASURES[measure][0]} on pictures it never trained on."
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


def _samples(root: Path, name: str, figures: Figures) -> list[EditSample]:
    folder = root / paths.GEDIT / "samples"
    if not (folder / "samples.json").is_file():
        return []
    pairs: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in read_json(folder / "samples.json"):
        if entry["policy"] == name:
            pairs.setdefault((entry["prompt_id"], entry["size"]), {})[entry["when"]] = entry
    found = []
    for (prompt_id, size), both in sorted(pairs.items(), key=lambda item: item[0][1]):
        key = f"edits.{name}.{size}.{prompt_id}"
        for when, entry in both.items():
            figures.add_all(f"{key}.{when}", {m: entry[m] for m in MEASURES if m in entry})
        text = both["before"]["prompt"]
        reference, before, after = (
            Picture.of(read_png(folder / file), f"{what}, {size} px: {text}")
            for what, file in (
                ("the picture to edit", both["before"]["reference"]),
                ("before training", both["before"]["file"]),
                ("after training", both["after"]["file"]),
            )
        )
        found.append(EditSample(text, size, reference, before, after, key))
    return found


def editors(
    root: Path, recipes: Mapping[str, Any], figures: Figures, curves: dict[str, Any]
) -> tuple[list[EditorPart], list[Missing]]:
    """The part of every recipe that edits, and what is missing for them."""
    if not recipes:
        return [], []
    path, missing = root / paths.GEDIT / "results.json", list[Missing]()
    results = read_json(path) if path.is_file() else None
    if results is None:
        missing.append(Missing("the edits before and after", "data/gedit/results.json", "dvc repro gedit"))
    else:
        figures.add_all("gedit", {k: results[k] for k in ("prompts", "pictures", "steps", "policies")})
        figures.add("gedit.seeds", len(results["seeds"]))
        for row in results["published"]:
            figures.add_all(f"published.gedit.{row['model']}", row["figures"])
    parts = []
    for name, recipe in recipes.items():
        log = read_log(root / paths.POLICIES / name / "training_log.csv")
        if log is None:
            told = f"data/policies/{name}/training_log.csv"
            missing.append(Missing(f"the training log of {name}", told, f"dvc repro policies@{name}"))
        measured = results is not None and name in results["policies"]
        parts.append(
            EditorPart(
                name=name,
                train_size=recipe.train_size,
                charts=[] if log is None else _charts(log, recipe.eval_sizes, name, curves),
                samples=_samples(root, name, figures) if measured else [],
                tables=measure_tables(name, results, MEASURES, "gedit") if measured and results is not None else [],
            )
        )
    return parts, missing


def published(root: Path) -> list[dict[str, Any]]:
    """Rows that others published on GEdit-Bench."""
    path = root / paths.GEDIT / "results.json"
    rows: list[dict[str, Any]] = read_json(path)["published"] if path.is_file() else []
    return rows
