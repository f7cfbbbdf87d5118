"""The parts of the page about the judge: pictures before any training, its lessons, how it learnt, how good it is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paco_core.benchmarks.published import T2IS_ABLATION, PublishedRow
from paco_core.data.records.panels import PanelStore
from paco_core.data.records.records import parse_ref
from paco_core.io import paths
from paco_core.io.files import read_json, read_table
from paco_core.io.shards import GRID_COLUMNS, ShardReader
from paco_core.report import charts
from paco_core.report.charts import Axis, Curves, DrawnChart, line, read_log
from paco_core.report.html import Figures, Missing, Picture, Skipped

SHEET_ROWS, PAIRS = 6, 6
LABELS = ("Yes", "No")
#: What an edit is judged by: key -> words.
DIMENSIONS = {
    "prompt_following": "Requested change",
    "consistency": "No other change",
    "overall": "Both",
}
STYLES = {"reward": "s1", "base": "s2", "clip_i": "s3"}  # other judges: s4


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of judges: the rankings, in one dimension, or the edits, in :data:`DIMENSIONS`."""

    dimensions: Mapping[str, str]
    rows: dict[str, list[dict[str, str]]]  # of judges, by dimension: key of the figures, label, style, plot
    axis: str
    rivals: list[dict[str, Any]]  # other judges: key of the differences, label, dimensions in which both judge
    published: list[dict[str, Any]]
    tie_rule: str


def sample_grid_rows(root: Path) -> list[dict[str, Any]] | Missing | Skipped:
    """Grids of some prompts, every seed of each; a fixed random choice of prompts, not the best ones."""
    if not list((root / paths.GRIDS).glob("*/index.parquet")):
        return Missing("the generated grids", paths.GRIDS)
    reader, themes = ShardReader.below(root / paths.GRIDS, require=GRID_COLUMNS), _themes(root)
    prompts = sorted(reader.index["prompt_id"].astype(str).unique(), key=_choice_order)
    prompts_with_theme = [p for p in prompts if p in themes] or prompts
    sheet = []
    for prompt in prompts_with_theme[:SHEET_ROWS]:
        table = reader.index[reader.index["prompt_id"].astype(str) == prompt].sort_values("seed")
        theme = themes.get(prompt, f"prompt {prompt}")
        pictures = [
            Picture.from_image(reader.read(str(row.id)), f"{theme}, seed {row.seed}") for row in table.itertuples()
        ]
        sheet.append({"theme": theme, "pictures": pictures})
    return sheet or Skipped("grids", "none was generated")


def _themes(root: Path) -> dict[str, str]:
    path = root / paths.COT_LABELS / "train.parquet"
    if not path.is_file():
        return {}
    table = read_table(path, columns=["prompt_id", "theme"]).drop_duplicates("prompt_id")
    return dict(zip(table["prompt_id"].astype(str), table["theme"].astype(str), strict=True))


def _choice_order(identity: str) -> str:
    """A fixed shuffle: an order that looks random and is the same on every machine."""
    return hashlib.sha256(identity.encode()).hexdigest()


def pair_cards(root: Path) -> list[dict[str, Any]] | Missing | Skipped:
    """Labelled pairs of painted panels, Yes and No in turn, each of another prompt: a fixed random choice."""
    labels = root / paths.COT_LABELS / "train.parquet"
    if not labels.is_file() or not list((root / paths.GRIDS).glob("*/index.parquet")):
        return Missing("the labelled pairs", paths.COT_LABELS / "train.parquet")
    panels = PanelStore.below(root / paths.GRIDS)
    image_refs = set(panels.grids.index.index)
    rows = [row for row in read_table(labels).to_dict("records") if parse_ref(str(row["first"]))[0] in image_refs]
    rows = [row for row in rows if not isinstance(row.get("instruction"), str)]
    rows.sort(key=lambda row: _choice_order(str(row["pair_id"])))
    queues = {label: [row for row in rows if row["label"] == label] for label in LABELS}
    cards: list[dict[str, Any]] = []
    used: set[str] = set()
    while len(cards) < PAIRS and any(queues.values()):
        turn, other = LABELS[len(cards) % 2], LABELS[(len(cards) + 1) % 2]
        queue = queues[turn] or queues[other]
        row = queue.pop(next((n for n, r in enumerate(queue) if str(r["prompt_id"]) not in used), 0))
        used.add(str(row["prompt_id"]))
        first, second = (
            Picture.from_image(panels.panel(str(row[side])), f"{side} image: {row['theme']}")
            for side in ("first", "second")
        )
        label, theme = str(row["label"]), str(row["theme"])
        reasons = str(row["answer"]).removeprefix(f"{label}.").strip()
        cards.append({"first": first, "second": second, "theme": theme, "label": label, "reasons": reasons})
    return cards or Skipped("pairs of panels", "none was ranked here")


def learning(root: Path, curves: Curves) -> list[DrawnChart] | Missing:
    """The judge's learning curves."""
    log = read_log(root / paths.REWARD_LORA / "training_log.csv")
    if log is None and (root / paths.REWARD_LORA / "source.json").is_file():
        return []  # published weights: there was no training
    if log is None:
        return Missing("the training log of the reward model", paths.REWARD_LORA / "training_log.csv")
    loss = [line(log, "step", "loss", "loss")]
    history = [
        line(log, "step", "validation_accuracy", "right decisions", dots=True),
        line(log, "step", "validation_roc_auc", "ROC-AUC", "s2", dots=True),
    ]
    about = "Each point is a batch. The loss should decrease."
    held_out = "After each epoch: the accuracy, and how well the model separates Yes from No (ROC-AUC)."
    return [
        DrawnChart.of(curves, "reward_lora.loss", "Training loss", about, loss, x_label="step"),
        DrawnChart.of(
            curves, "reward_lora.validation", "On held-out pairs", held_out, history,
            x_label="step", bounds=(0.5, 1.0), guide=(0.5, "guessing"),
        ),
    ]  # fmt: skip


def rankings(root: Path, figures: Figures) -> Benchmark | Missing | Skipped:
    """The ranking benchmark's table and plot."""
    results = _results(root, paths.CONSISTENCY_RANK, "the ranking benchmark")
    if isinstance(results, Missing | Skipped):
        return results
    if "methods" not in results:
        return Skipped("the ranking benchmark", "only characters are held out")
    figures.add_all(
        paths.CONSISTENCY_RANK.name, {k: results[k] for k in ("instances", "prompts", "methods", "comparisons")}
    )
    accuracies = {name: method["metrics"]["accuracy"] for name, method in results["methods"].items()}
    # Not 1 of 4: where the annotator tied candidates, a random order is right more often.
    chance = accuracies["random"]["mean"]
    axis = Axis.over([v for m in accuracies.values() for v in (m["mean"], m["low"], m["high"])], include=(0.0, chance))
    rows = {
        "accuracy": [_row(results, paths.CONSISTENCY_RANK, name, "", axis, v, chance) for name, v in accuracies.items()]
    }
    return _benchmark(results, paths.CONSISTENCY_RANK, figures, {"accuracy": "Accuracy"}, rows, axis, "published")


def edits(root: Path, figures: Figures) -> Benchmark | Missing | Skipped:
    """The editing benchmark's tables and plots: which of two edits of a picture is better?"""
    results = _results(root, paths.EDIT_REWARD, "the editing benchmark")
    if isinstance(results, Missing | Skipped):
        return results
    figures.add_all(paths.EDIT_REWARD.name, {k: results[k] for k in ("cases", "methods", "comparisons")})
    axis, dimensions = Axis.over([0.0, 1.0]), {d: words for d, words in DIMENSIONS.items() if d in results["cases"]}
    rows = {
        dimension: [
            _row(results, paths.EDIT_REWARD, name, f".accuracy.{dimension}.strict", axis, value, guide=0.5)
            for name, method in results["methods"].items()
            if (value := method["accuracy"][dimension]["strict"])["mean"] is not None  # CLIP-I reads no instruction
        ]
        for dimension in dimensions
    }
    return _benchmark(results, paths.EDIT_REWARD, figures, dimensions, rows, axis, "published.edits")


def _results(root: Path, folder: Path, title: str) -> dict[str, Any] | Missing | Skipped:
    if (reason := Skipped.from_folder(title, root / folder)) is not None:
        return reason
    path = folder / "results.json"
    if not (root / path).is_file():
        return Missing(title, path)
    results: dict[str, Any] = read_json(root / path)
    return results


def _row(
    results: Mapping[str, Any],
    folder: Path,
    name: str,
    below: str,
    axis: Axis,
    value: Mapping[str, float],
    guide: float,
) -> dict[str, str]:
    """``below``: where the figures of the row lie below those of the method."""
    style = STYLES.get(name, "s4")
    plot = charts.whisker(axis, value["mean"], value["low"], value["high"], style, guide=guide)
    key, label = f"{folder.name}.methods.{name}{below}", results["methods"][name]["label"]
    return {"key": key, "label": label, "style": style, "plot": plot}


def _benchmark(
    results: Mapping[str, Any],
    folder: Path,
    figures: Figures,
    dimensions: Mapping[str, str],
    rows: dict[str, list[dict[str, str]]],
    axis: Axis,
    published: str,
) -> Benchmark:
    rivals = [
        {
            "key": f"{folder.name}.comparisons.{name}",
            "label": results["methods"][name.split(" - ")[1]]["label"],
            "dimensions": [dimension for dimension in dimensions if row[dimension]["mean"] is not None],
        }
        for name, row in results["comparisons"].items()
    ]
    published_rows: list[dict[str, Any]] = results.get("published", [])
    for row in published_rows:
        figures.add_all(f"{published}.{row['model']}", row["figures"])
    return Benchmark(dimensions, rows, charts.axis_labels(axis), rivals, published_rows, results["tie_rule"])


def ablation(figures: Figures) -> list[PublishedRow]:
    """The paper's own rows about resolution and taming, for orientation."""
    for row in T2IS_ABLATION:
        figures.add_all(f"published.{row.model}", row.figures)
    return list(T2IS_ABLATION)
