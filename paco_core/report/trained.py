"""What a policy learnt: its curves, pictures before and after, measurements; painters and editors alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paco_core.config.params import PolicyRecipe
from paco_core.io import paths
from paco_core.io.files import inside, read_json
from paco_core.io.pictures import read_image
from paco_core.report import charts
from paco_core.report.charts import Axis
from paco_core.report.curves import Chart, read_log
from paco_core.report.figures import Figures
from paco_core.report.html import Picture
from paco_core.report.pictures import Sample
from paco_core.report.sections import Missing

if TYPE_CHECKING:
    import pandas as pd

Curves = dict[str, Any]


class Measure(NamedTuple):
    """A measure in plain words."""

    name: str
    meaning: str
    rewarded: bool = False


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


@dataclass(frozen=True)
class Kind:
    """What the page must know of a kind of policy.

    Attributes:
        stage: the benchmark that measured it.
        compared: what that benchmark shows, in words.
        counts: its figures that the page shows.
        measures: by key, in the order of the page.
        draw: charts of a training log: (log, evaluation sizes, name of the policy, where the points are kept).
    """

    stage: str
    compared: str
    counts: tuple[str, ...]
    measures: Mapping[str, Measure]
    draw: Callable[[pd.DataFrame, Sequence[int], str, Curves], list[Chart]]


def parts(
    kind: Kind, root: Path, recipes: Mapping[str, PolicyRecipe], figures: Figures, curves: Curves
) -> tuple[list[PolicyPart], list[Missing]]:
    """The part of every recipe of a kind, and what is missing for them."""
    if not recipes:
        return [], []
    missing = list[Missing]()
    results = _results(kind, root, figures)
    if results is None:
        missing.append(Missing(kind.compared, paths.DATA / kind.stage / "results.json"))
    found = []
    for name, recipe in recipes.items():
        file = paths.POLICIES / name / "training_log.csv"
        log = read_log(root / file)
        if log is None:
            missing.append(Missing(f"the training log of {name}", file, name))
        sizes = results["policies"].get(name) if results else None
        found.append(
            PolicyPart(
                name=name,
                train_size=recipe.train_size,
                charts=[] if log is None else kind.draw(log, recipe.eval_sizes, name, curves),
                samples=_samples(kind, root, name, figures) if sizes else {},
                tables=_tables(kind, name, sizes) if sizes else [],
            )
        )
    return found, missing


def _results(kind: Kind, root: Path, figures: Figures) -> dict[str, Any] | None:
    path = root / "data" / kind.stage / "results.json"
    if not path.is_file():
        return None
    results: dict[str, Any] = read_json(path)
    figures.add_all(kind.stage, {key: results[key] for key in (*kind.counts, "steps", "policies")})
    figures.add(f"{kind.stage}.seeds", len(results["seeds"]))
    return results


def _tables(kind: Kind, name: str, sizes: Mapping[str, Any]) -> list[MeasureTable]:
    """Before and after by measure and size."""
    tables = []
    for key, measure in kind.measures.items():
        found = {int(size): row[key] for size, row in sizes.items() if key in row}
        if not found:
            continue
        ends = [row[when][k] for row in found.values() for when in ("before", "after") for k in ("mean", "low", "high")]
        axis = Axis.over(ends, include=(0.0, 1.0) if key.startswith("gold") else ())
        rows = []
        for size, row in sorted(found.items()):
            plots = [
                charts.whisker(axis, row[when]["mean"], row[when]["low"], row[when]["high"], style)
                for when, style in (("before", "s2"), ("after", "s1"))
            ]
            rows.append(ChangeRow(size, f"{kind.stage}.policies.{name}.{size}.{key}", *plots))
        tables.append(MeasureTable(*measure, rows, charts.axis_labels(axis)))
    return tables


def _samples(kind: Kind, root: Path, name: str, figures: Figures) -> dict[str, list[Sample]]:
    """Kept pictures of a policy by prompt; all sizes of a prompt stand together."""
    folder = root / "data" / kind.stage / "samples"
    if not (folder / "samples.json").is_file():
        return {}
    pairs: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in read_json(folder / "samples.json"):
        if entry["policy"] == name:
            pairs.setdefault((entry["prompt_id"], entry["size"]), {})[entry["when"]] = entry
    found: dict[str, list[Sample]] = {}
    for (prompt_id, size), both in sorted(pairs.items(), key=lambda pair: pair[0][1]):
        key = f"samples.{name}.{size}.{prompt_id}"
        for when, entry in both.items():
            figures.add_all(f"{key}.{when}", {m: entry[m] for m in kind.measures if m in entry})
        found.setdefault(prompt_id, []).append(_sample(folder, both["before"], both["after"], key))
    return found


def _sample(folder: Path, before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> Sample:
    size, edited = before["size"], "reference" in before
    text = before["prompt"] if edited else before["theme"]

    def picture(file: str, what: str) -> Picture:
        return Picture.of(read_image(inside(folder, file)), f"{what}: {text}")

    return Sample(
        title=text,
        size=size,
        before=picture(before["file"], f"before training, {size} px"),
        after=picture(after["file"], f"after training, {size} px"),
        key=key,
        reference=picture(before["reference"], "the picture to edit") if edited else None,
    )
