"""Report of the policies: training curves, images before and after, metrics, and headlines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.config.params import Params, PolicyRecipe
from paco_core.data.records.panels import split_grid
from paco_core.io import paths
from paco_core.io.files import inside, read_json
from paco_core.io.pictures import join_in_row, read_image
from paco_core.models.metric_meanings import CHARACTER_METRICS, GROUND_TRUTH, METRICS, MetricMeaning
from paco_core.report import charts
from paco_core.report.charts import Axis, Curves, DrawnChart, read_log
from paco_core.report.html import Figures, Missing, Picture
from paco_core.report.policy_charts import edit_charts, set_charts

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Sample:
    """One prompt and seed at one size, before and after training."""

    title: str  # the set's theme, or the instruction of an edit
    size: int
    before: Picture
    after: Picture
    key: str  # of what was measured of each
    reference: Picture | None  # what was to be edited
    strip: bool  # a story: its panels stand in one row


@dataclass(frozen=True)
class MeasureTable:
    """One measure at every size."""

    metric: MetricMeaning
    rows: list[dict[str, Any]]  # size, key of its figures, plots before and after
    axis: str


@dataclass(frozen=True)
class PolicyPart:
    """What one policy learnt."""

    name: str
    train_size: int
    charts: list[DrawnChart]
    samples: dict[str, list[Sample]]  # by prompt, one entry a size
    tables: list[MeasureTable]


ChartsOf = Callable[["pd.DataFrame", Sequence[int], str, Curves], list[DrawnChart]]


@dataclass(frozen=True)
class PolicyKind:
    """What the page must know of a kind of policy.

    Attributes:
        stage: the benchmark that measured it.
        compared: what that benchmark shows, in words.
        counts: its figures that the page shows.
        measures: names of its metrics, in the order of the page.
        draw: charts of a training log, as in :mod:`.policy_charts`.
    """

    stage: str
    compared: str
    counts: tuple[str, ...]
    measures: Sequence[str]
    draw: ChartsOf


def parts(
    kind: PolicyKind,
    root: Path,
    recipes: Mapping[str, PolicyRecipe],
    figures: Figures,
    curves: Curves,
    missing: list[Missing],
) -> list[PolicyPart]:
    """The part of every recipe of a kind; what they lack is added to ``missing``."""
    if not recipes:
        return []
    results = _results(kind, root, figures)
    if results is None:
        missing.append(Missing(kind.compared, paths.DATA / kind.stage / "results.json"))
    policy_parts = []
    for name, recipe in recipes.items():
        file = paths.POLICIES / name / "training_log.csv"
        log = read_log(root / file)
        if log is None:
            missing.append(Missing(f"the training log of {name}", file, name))
        sizes = results["policies"].get(name) if results else None
        policy_parts.append(
            PolicyPart(
                name=name,
                train_size=recipe.train_size,
                charts=[] if log is None else kind.draw(log, recipe.eval_sizes, name, curves),
                samples=_samples(kind, root, name, figures, story=recipe.paints_stories) if sizes else {},
                tables=_tables(kind, name, sizes) if sizes else [],
            )
        )
    return policy_parts


def _results(kind: PolicyKind, root: Path, figures: Figures) -> dict[str, Any] | None:
    path = root / "data" / kind.stage / "results.json"
    if not path.is_file():
        return None
    results: dict[str, Any] = read_json(path)
    figures.add_all(kind.stage, {key: results[key] for key in (*kind.counts, "steps", "policies")})
    figures.add(f"{kind.stage}.seeds", len(results["seeds"]))
    return results


def _tables(kind: PolicyKind, name: str, sizes: Mapping[str, Any]) -> list[MeasureTable]:
    """Before and after by measure and size."""
    tables = []
    for key in kind.measures:
        rows_by_size = {int(size): row[key] for size, row in sizes.items() if key in row}
        if not rows_by_size:
            continue
        ends = [
            row[phase][k]
            for row in rows_by_size.values()
            for phase in ("before", "after")
            for k in ("mean", "low", "high")
        ]
        axis = Axis.over(ends, include=(0.0, 1.0) if key.startswith(GROUND_TRUTH) else ())
        rows = []
        for size, row in sorted(rows_by_size.items()):
            plots = {
                phase: charts.whisker(axis, row[phase]["mean"], row[phase]["low"], row[phase]["high"], style)
                for phase, style in (("before", "s2"), ("after", "s1"))
            }
            rows.append({"size": size, "key": f"{kind.stage}.policies.{name}.{size}.{key}", **plots})
        tables.append(MeasureTable(METRICS[key], rows, charts.axis_labels(axis)))
    return tables


def _samples(kind: PolicyKind, root: Path, name: str, figures: Figures, *, story: bool) -> dict[str, list[Sample]]:
    """Kept pictures of a policy by prompt; all sizes of a prompt stand together."""
    folder = root / "data" / kind.stage / "samples"
    if not (folder / "samples.json").is_file():
        return {}
    pairs: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in read_json(folder / "samples.json"):
        if entry["policy"] == name:
            pairs.setdefault((entry["prompt_id"], entry["size"]), {})[entry["when"]] = entry
    samples: dict[str, list[Sample]] = {}
    for (prompt_id, size), entries in sorted(pairs.items(), key=lambda pair: pair[0][1]):
        key = f"samples.{name}.{size}.{prompt_id}"
        for phase, entry in entries.items():
            figures.add_all(f"{key}.{phase}", {m: entry[m] for m in kind.measures if m in entry})
        samples.setdefault(prompt_id, []).append(_sample(folder, entries["before"], entries["after"], key, story=story))
    return samples


def _sample(folder: Path, before: Mapping[str, Any], after: Mapping[str, Any], key: str, *, story: bool) -> Sample:
    size, edited = before["size"], "reference" in before
    text = before["prompt"] if edited else before["theme"]

    def picture(file: str, caption: str) -> Picture:
        image = read_image(inside(folder, file))
        displayed = join_in_row(split_grid(image, before["layout"])) if story else image
        return Picture.from_image(displayed, f"{caption}: {text}")

    return Sample(
        title=text,
        size=size,
        before=picture(before["file"], f"before training, {size} px"),
        after=picture(after["file"], f"after training, {size} px"),
        key=key,
        reference=picture(before["reference"], "the source image") if edited else None,
        strip=story,
    )


PAINTERS = PolicyKind(
    paths.T2IS.name,
    "the comparison before and after",
    ("prompts",),
    (*CHARACTER_METRICS, "gold_consistency", "gold_following", "consistency", "clip_t", "panel_diversity"),
    set_charts,
)
EDITORS = PolicyKind(
    paths.GEDIT.name,
    "the edits before and after",
    ("prompts", "pictures"),
    ("gold_editing", "gold_reached", "gold_kept", "editing"),
    edit_charts,
)


def published(root: Path, figures: Figures) -> list[dict[str, Any]]:
    """Rows that others published on GEdit-Bench."""
    path = root / paths.GEDIT / "results.json"
    rows: list[dict[str, Any]] = read_json(path)["published"] if path.is_file() else []
    for row in rows:
        figures.add_all(f"published.gedit.{row['model']}", row["figures"])
    return rows


def measure_of(params: Params, measure: str) -> str:
    """What consistency or editing is measured by: the gold metric where this world has one."""
    return f"{GROUND_TRUTH}{measure}" if params.world == "storybook" else measure


def times(size: int, train_size: int) -> str:
    """How much larger a size is than that of the training, to stand before "the size"."""
    relation = size / train_size
    return {1.0: "", 2.0: "twice "}.get(relation, f"{relation:g} times ")


def tiles(
    params: Params, generating: list[PolicyPart], editing: list[PolicyPart], figures: Figures
) -> list[dict[str, str]]:
    """Headlines: the judge, and each policy at each size, from a number to a number, in words."""
    headlines = []
    rank = paths.CONSISTENCY_RANK.name
    if f"{rank}.comparisons.reward - base.accuracy.mean" in figures.values:
        chance = figures.values[f"{rank}.methods.random.metrics.accuracy.mean"]
        headlines.append(
            {
                "title": "Reward model",
                "before": f"{rank}.methods.base.metrics.accuracy.mean",
                "after": f"{rank}.methods.reward.metrics.accuracy.mean",
                "change": f"{rank}.comparisons.reward - base.accuracy",
                "words": f"accuracy on held-out rankings: base model and trained model (a random order: {chance:.2f})",
            }
        )
    for part in generating:
        subject = "of panel pairs are consistent"
        headlines += _change_tiles(part, measure_of(params, "consistency"), "Image generator", subject)
        subject = "of a character's traits are in the new panels that name it"
        headlines += _change_tiles(part, CHARACTER_METRICS[0], "Characters", subject)
    for part in editing:
        subject = "of edits made the requested change and no other"
        headlines += _change_tiles(part, measure_of(params, "editing"), part.name, subject)
    return headlines


def _change_tiles(part: PolicyPart, measure: str, title: str, subject: str) -> Iterator[dict[str, str]]:
    """A policy's measure before and after training, at each size."""
    for row in (row for table in part.tables for row in table.rows if row["key"].endswith(f".{measure}")):
        yield {
            "title": f"{title} at {row['size']} px",
            "before": f"{row['key']}.before.mean",
            "after": f"{row['key']}.after.mean",
            "change": f"{row['key']}.change",
            "words": f"{subject}, before and after training, at {times(row['size'], part.train_size)}the training size",
        }
