"""The parts of the page, each read from the outs of its stage; a part whose data are missing says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core import paths
from paco_core.benchmarks.published import T2IS_ABLATION, PublishedRow
from paco_core.files import read_json
from paco_core.report import charts
from paco_core.report.charts import Axis, Line
from paco_core.report.figures import Figures
from paco_core.report.pictures import Picture, Sample, read_png

if TYPE_CHECKING:
    import pandas as pd

#: Measures of a set in plain words: key -> (name, what it means, is a training reward).
MEASURES: dict[str, tuple[str, str, bool]] = {
    "gold_consistency": (
        "Gold consistency",
        "share of panel pairs that show the same character in the same style, read by the recogniser",
        False,
    ),
    "gold_following": (
        "Gold prompt following",
        "share of asked attributes that were drawn, read by the recogniser",
        False,
    ),
    "consistency": (
        "Judge's consistency",
        "mean probability of “Yes” over the panel pairs; a training reward",
        True,
    ),
    "clip_t": (
        "Text match (CLIP-T)",
        "similarity of each panel and its own sentence; a training reward",
        True,
    ),
    "panel_diversity": (
        "Panel diversity",
        "how different the panels are; 0 would be one picture four times",
        False,
    ),
}


@dataclass(frozen=True)
class Missing:
    """A part that cannot be shown, and the command that makes it."""

    what: str
    path: str
    make: str


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


@dataclass(frozen=True)
class Chart:
    """A chart, its legend and its words."""

    title: str
    note: str
    svg: str
    legend: list[tuple[str, str]]

    @classmethod
    def of(cls, title: str, note: str, lines: Sequence[Line], **how: Any) -> Chart:
        drawn = [line for line in lines if line.points()]
        legend = [(charts.legend_marker(line.style), line.label) for line in drawn]
        return cls(title, note, charts.line_chart(drawn, title=title, **how), legend if len(drawn) > 1 else [])


@dataclass(frozen=True)
class ChangeRow:
    """One measure at one size, before and after."""

    size: int
    key: str
    before: str
    after: str


@dataclass(frozen=True)
class MeasureTable:
    """One measure at every size."""

    name: str
    meaning: str
    rewarded: bool
    rows: list[ChangeRow]
    axis: str


@dataclass(frozen=True)
class PolicyPart:
    """What one policy learnt."""

    name: str
    train_size: int
    charts: list[Chart]
    samples: dict[str, list[Sample]]  # by prompt, one entry a size
    tables: list[MeasureTable]


def judge(root: Path, figures: Figures) -> Judge | Missing:
    """The ranking benchmark's table and plot."""
    path = root / paths.CONSISTENCY_RANK / "results.json"
    if not path.is_file():
        return Missing("the ranking benchmark", "data/consistency_rank/results.json", "dvc repro consistency_rank")
    results = read_json(path)
    figures.add_all("consistency_rank", {k: results[k] for k in ("instances", "prompts", "methods", "comparisons")})
    methods: dict[str, Any] = results["methods"]
    found = [methods[name]["metrics"]["accuracy"] for name in methods]
    # Measured, not 1 of 4: where the annotator tied candidates, a random order is right more often.
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


def read_log(path: Path) -> pd.DataFrame | None:
    import pandas as pd

    return pd.read_csv(path) if path.is_file() else None


def line(log: pd.DataFrame, x: str, column: str, label: str, style: str = "s1", *, dots: bool = False) -> Line:
    if column not in log.columns:
        return Line(label, [], [], style, dots)
    values = log[[x, column]].dropna()
    return Line(label, [float(v) for v in values[x]], [float(v) for v in values[column]], style, dots)


def keep(curves: dict[str, Any], name: str, lines: Sequence[Line]) -> None:
    """The numbers behind a chart, for ``metrics.json``."""
    curves[name] = {line.label: line.points() for line in lines if line.points()}


def reward_charts(root: Path, curves: dict[str, Any]) -> list[Chart] | Missing:
    """The judge's learning curves."""
    log = read_log(root / paths.REWARD_LORA / "training_log.csv")
    if log is None and (root / paths.REWARD_LORA / "source.json").is_file():
        return []  # published weights: there was no training
    if log is None:
        return Missing("the judge's training log", "data/reward_lora/training_log.csv", "dvc repro reward_lora")
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
            "On pairs kept aside",
            "After each round through the data: how often it is right, and how well it separates Yes from No.",
            seen,
            x_label="step",
            bounds=(0.5, 1.0),
            guide=(0.5, "guessing"),
        ),
    ]


def policy_charts(log: pd.DataFrame, sizes: Sequence[int], name: str, curves: dict[str, Any]) -> list[Chart]:
    """A policy's learning curves: rewards, their ratio, unseen prompts, diversity."""
    rewards = [
        line(log, "epoch", "reward/consistency", "judge’s consistency"),
        line(log, "epoch", "reward/clip_t", "text match (CLIP-T)", "s2"),
    ]
    ratio = [line(log, "epoch", "reward_ratio", "consistency / text match")]
    unseen = [
        line(log, "epoch", f"eval/{size}/gold_consistency", f"{size} px", style, dots=True)
        for size, style in zip(sizes, ("s1", "s2", "s3", "s4"), strict=False)
    ]
    if not any(line.points() for line in unseen):
        unseen = [
            line(log, "epoch", f"eval/{size}/consistency", f"{size} px", style, dots=True)
            for size, style in zip(sizes, ("s1", "s2", "s3", "s4"), strict=False)
        ]
        measured = "The judge’s consistency on prompts it never trained on."
    else:
        measured = "Gold consistency on prompts it never trained on; the recogniser gives no reward."
    diversity = [line(log, "epoch", "panel_diversity", "panel diversity")]
    lists = {"rewards": rewards, "reward_ratio": ratio, "unseen": unseen, "panel_diversity": diversity}
    for key, lines in lists.items():
        keep(curves, f"{name}.{key}", lines)
    return [
        Chart.of("Rewards", "Mean over all pictures of an epoch.", rewards, x_label="epoch"),
        Chart.of(
            "Reward ratio",
            "If one reward ran away with the training, this line would climb and climb.",
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


def measure_tables(
    name: str,
    results: Mapping[str, Any],
    measures: Mapping[str, tuple[str, str, bool]] = MEASURES,
    stage: str = "t2is",
) -> list[MeasureTable]:
    """Before and after by measure and size, gold metrics first."""
    sizes: Mapping[str, Any] = results["policies"][name]
    tables = []
    for measure, (label, meaning, rewarded) in measures.items():
        found = {int(size): row[measure] for size, row in sizes.items() if measure in row}
        if not found:
            continue
        ends = [row[when][k] for row in found.values() for when in ("before", "after") for k in ("mean", "low", "high")]
        axis = Axis.over(ends, include=(0.0, 1.0) if measure.startswith("gold") else ())
        rows = []
        for size, row in sorted(found.items()):
            plots = [
                charts.whisker(axis, row[when]["mean"], row[when]["low"], row[when]["high"], style)
                for when, style in (("before", "s2"), ("after", "s1"))
            ]
            rows.append(ChangeRow(size, f"{stage}.policies.{name}.{size}.{measure}", *plots))
        tables.append(MeasureTable(label, meaning, rewarded, rows, charts.axis_labels(axis)))
    return tables


def samples(root: Path, name: str, figures: Figures) -> dict[str, list[Sample]]:
    """Kept pictures of a policy by prompt; both sizes of a prompt stand together."""
    folder = root / paths.T2IS / "samples"
    if not (folder / "samples.json").is_file():
        return {}
    pairs: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in read_json(folder / "samples.json"):
        if entry["policy"] == name:
            pairs.setdefault((entry["prompt_id"], entry["size"]), {})[entry["when"]] = entry
    found: dict[str, list[Sample]] = {}
    for (prompt_id, size), both in pairs.items():
        before, after = both["before"], both["after"]
        key = f"samples.{name}.{size}.{prompt_id}"
        for when, entry in both.items():
            figures.add_all(f"{key}.{when}", {m: entry[m] for m in MEASURES if m in entry})
        pictures = [
            Picture.of(read_png(folder / e["file"]), f"{when} training, {size} px: {e['theme']}")
            for when, e in (("before", before), ("after", after))
        ]
        found.setdefault(prompt_id, []).append(
            Sample(before["theme"], before["prompt"], size, pictures[0], pictures[1], key)
        )
    return {prompt: sorted(shown, key=lambda s: s.size) for prompt, shown in found.items()}


def policies(
    root: Path, recipes: Mapping[str, Any], figures: Figures, curves: dict[str, Any]
) -> tuple[list[PolicyPart], list[Missing]]:
    """The part of every recipe that paints sets, and what is missing for them."""
    results_path = root / paths.T2IS / "results.json"
    results = read_json(results_path) if results_path.is_file() else None
    missing = []
    if results is None:
        missing.append(Missing("the comparison before and after", "data/t2is/results.json", "dvc repro t2is"))
    else:
        figures.add_all("t2is", {k: results[k] for k in ("prompts", "steps", "policies")})
        figures.add("t2is.seeds", len(results["seeds"]))
    parts = []
    for name, recipe in recipes.items():
        log = read_log(root / paths.POLICIES / name / "training_log.csv")
        if log is None:
            path = f"data/policies/{name}/training_log.csv"
            missing.append(Missing(f"the training log of {name}", path, f"dvc repro policies@{name}"))
        measured = results is not None and name in results["policies"]
        parts.append(
            PolicyPart(
                name=name,
                train_size=recipe.train_size,
                charts=[] if log is None else policy_charts(log, recipe.eval_sizes, name, curves),
                samples=samples(root, name, figures) if measured else {},
                tables=measure_tables(name, results) if measured and results is not None else [],
            )
        )
    return parts, missing


def ablation(figures: Figures) -> list[PublishedRow]:
    """The paper's own rows about resolution and taming, for orientation."""
    for row in T2IS_ABLATION:
        figures.add_all(f"published.{row.model}", row.figures)
    return list(T2IS_ABLATION)
