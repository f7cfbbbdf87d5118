"""The parts of the page about the judge, read from the outs of its stages; a part without its data says so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paco_core.benchmarks.published import T2IS_ABLATION, PublishedRow
from paco_core.io import paths
from paco_core.io.files import read_json
from paco_core.io.skipped import skipped
from paco_core.report import charts
from paco_core.report.charts import Axis
from paco_core.report.curves import Chart, keep, line, read_log
from paco_core.report.figures import Figures


@dataclass(frozen=True)
class Missing:
    """A part that cannot be shown for want of ``out``, which a stage makes, or an item of one."""

    what: str
    out: Path
    item: str | None = None

    @property
    def path(self) -> str:
        return self.out.as_posix()

    @property
    def make(self) -> str:
        """The command that makes it."""
        return f"dvc repro {paths.producer(self.out)}{f'@{self.item}' if self.item else ''}"


@dataclass(frozen=True)
class Skipped:
    """A part that there is not, since its stage had nothing to do."""

    what: str
    reason: str

    @classmethod
    def of(cls, what: str, folder: Path) -> Skipped | None:
        """The part made of the out ``folder``; None where its stage did something, or has not run."""
        reason = skipped(folder)
        return None if reason is None else cls(what, reason)


@dataclass(frozen=True)
class MethodRow:
    """One judge of the ranking benchmark."""

    key: str  # of its figures
    label: str
    style: str
    plot: str


@dataclass(frozen=True)
class Judge:
    """The ranking benchmark."""

    rows: list[MethodRow]
    axis: str
    rivals: list[tuple[str, str]]  # (key of the difference, rival's label)
    published: list[dict[str, Any]]
    tie_rule: str


def judge(root: Path, figures: Figures) -> Judge | Missing | Skipped:
    """The ranking benchmark's table and plot."""
    if (reason := Skipped.of("the ranking benchmark", root / paths.CONSISTENCY_RANK)) is not None:
        return reason
    path = root / paths.CONSISTENCY_RANK / "results.json"
    if not path.is_file():
        return Missing("the ranking benchmark", paths.CONSISTENCY_RANK / "results.json")
    results = read_json(path)
    figures.add_all(
        paths.CONSISTENCY_RANK.name, {k: results[k] for k in ("instances", "prompts", "methods", "comparisons")}
    )
    methods: dict[str, Any] = results["methods"]
    found = [methods[name]["metrics"]["accuracy"] for name in methods]
    # Not 1 of 4: where the annotator tied candidates, a random order is right more often.
    chance = methods["random"]["metrics"]["accuracy"]["mean"]
    axis = Axis.over([v for m in found for v in (m["mean"], m["low"], m["high"])], include=(0.0, chance))
    rows = []
    for name, method in methods.items():
        style = {"reward": "s1", "base": "s2", "clip_i": "s3"}.get(name, "s4")
        value = method["metrics"]["accuracy"]
        plot = charts.whisker(axis, value["mean"], value["low"], value["high"], style, guide=chance)
        rows.append(MethodRow(f"consistency_rank.methods.{name}", method["label"], style, plot))
    rivals = [
        (f"consistency_rank.comparisons.{name}", methods[name.split(" - ")[1]]["label"])
        for name in results["comparisons"]
    ]
    published = results.get("published", [])
    for row in published:
        figures.add_all(f"published.{row['model']}", row["figures"])
    return Judge(rows, charts.axis_labels(axis), rivals, published, results["tie_rule"])


def reward_charts(root: Path, curves: dict[str, Any]) -> list[Chart] | Missing:
    """The judge's learning curves."""
    log = read_log(root / paths.REWARD_LORA / "training_log.csv")
    if log is None and (root / paths.REWARD_LORA / "source.json").is_file():
        return []  # published weights: there was no training
    if log is None:
        return Missing("the judge's training log", paths.REWARD_LORA / "training_log.csv")
    loss = [line(log, "step", "loss", "loss")]
    seen = [
        line(log, "step", "validation_accuracy", "right decisions", dots=True),
        line(log, "step", "validation_roc_auc", "ROC-AUC", "s2", dots=True),
    ]
    keep(curves, "reward_lora.loss", loss)
    keep(curves, "reward_lora.validation", seen)
    return [
        Chart.of("Training loss", "Falls while the judge learns; each point is a mini-batch.", loss, x_label="step"),
        Chart.of(
            "On held-out pairs",
            "After each round through the data: how often it is right, and how well it separates Yes from No.",
            seen,
            x_label="step",
            bounds=(0.5, 1.0),
            guide=(0.5, "guessing"),
        ),
    ]


def ablation(figures: Figures) -> list[PublishedRow]:
    """The paper's own rows about resolution and taming, for orientation."""
    for row in T2IS_ABLATION:
        figures.add_all(f"published.{row.model}", row.figures)
    return list(T2IS_ABLATION)
