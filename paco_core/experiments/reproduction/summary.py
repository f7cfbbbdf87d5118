"""From kept cells to a recipe's table: what each variant gains over its bare model, and over the recipe as it is.

Pictures before and after share prompt and noise, variants share prompts, noise and training seeds, so every
difference is taken case by case. Intervals are for other prompts and other training seeds (both drawn anew).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paco_core.benchmarks.statistics import Estimate, crossed_estimate
from paco_core.config.params import Params
from paco_core.experiments.grid import RESULT
from paco_core.experiments.reproduction.cells import Kept, by
from paco_core.experiments.reproduction.exam import read_table
from paco_core.experiments.reproduction.variants import VARIANTS, plain_of
from paco_core.io.answer import plain
from paco_core.io.files import DataError, read_json
from paco_core.tasks.table import measured_by

if TYPE_CHECKING:
    from paco_core.tasks.base import Task

BARE = "before training"  # who painted, beside the variants


@dataclass(frozen=True)
class CellChange:
    """One measure at one size: before training, after it, the change, and the change less the plain recipe's."""

    before: Estimate
    after: Estimate
    change: Estimate
    over_plain: Estimate | None  # None for the plain recipe, and where they share no seed


@dataclass(frozen=True)
class VariantRow:
    """One variant over its seeds."""

    title: str
    changes: Mapping[str, Any]  # of keys
    measures: Mapping[int, Mapping[str, CellChange]]  # size -> measure
    trainings: Mapping[int, Mapping[str, Any]]  # seed -> what was reported of it, and its MLflow ``run``, if any

    def figures(self, name: str) -> list[float]:
        """A figure of the trainings, one a seed; NaN where it has none."""
        return [np.nan if t.get(name) is None else float(t[name]) for t in self.trainings.values()]


@dataclass(frozen=True)
class RecipeSummary:
    """One recipe's variants, and what they rest on."""

    recipe: str
    variants: Mapping[str, VariantRow]
    settings: Mapping[str, Any]
    resamples: int
    painters: Mapping[str, Path]  # the bare model and each variant under its first seed -> folder with pictures

    @property
    def train_size(self) -> int:
        """Of the recipe as it is."""
        return int(self.settings[self.recipe]["train_size"])

    @property
    def plain(self) -> str | None:
        """The variant that is the recipe as it is, if it was trained."""
        name = plain_of(self.recipe)
        return name if name in self.variants else None

    @property
    def task(self) -> Task:
        """What the recipe trains for."""
        return measured_by(self.settings["benchmark"])

    @property
    def first(self) -> Mapping[int, Mapping[str, CellChange]]:
        """The measures of one variant; all have the same, and the same before training."""
        return next(iter(self.variants.values())).measures

    @property
    def sizes(self) -> list[int]:
        return sorted(self.first)

    @property
    def measures(self) -> list[str]:
        return list(self.first[self.sizes[0]])

    def as_dict(self) -> dict[str, Any]:
        return dict(plain({name: getattr(self, name) for name in ("settings", "resamples", "variants")}))


def before_folder(out: Path, recipe: str) -> Path:
    """Where the examination of a recipe's bare model lies."""
    return out / "before" / recipe


def go_together(out: Path, cells: Sequence[Kept]) -> bool:
    """Do a recipe's cells rest on the same settings, and on the bare model as it was examined last?"""
    key = read_json(before_folder(out, cells[0]["recipe"]) / RESULT)["key"]
    return len(by("basis", cells)) == 1 and {cell["examined"] for cell in cells} == {key}


def _refuse_mixed(out: Path, recipe: str, cells: Sequence[Kept]) -> None:
    meant = {variant.name: plain(variant.changes) for variant in VARIANTS}
    for cell in cells:
        if cell["changes"] != meant[cell["variant"]]:
            raise DataError(f"{cell['folder']}: variant {cell['variant']} meant {cell['changes']} then; remove it")
    if len(found := by("basis", cells)) > 1:
        groups = "; ".join(f"{basis}: {', '.join(c['folder'].name for c in part)}" for basis, part in found.items())
        raise DataError(
            f"the cells in {out / 'cells'} have different settings, prompts, reward or models ({groups}); "
            "remove those that are out of date, or give another --name"
        )
    if not go_together(out, cells):
        before = before_folder(out, recipe)
        raise DataError(f"{before}: the bare model was measured differently from the cells; run `paco reproduce` again")


def summarise(out: Path, cells: Sequence[Kept], params: Params) -> dict[str, RecipeSummary]:
    """A summary of each recipe.

    Raises:
        DataError: when there is no cell, when those of a recipe rest on different settings or data, or when a variant
            meant something else at the time; naming folders.
    """
    if not cells:
        raise DataError("no cell is finished yet; run `paco reproduce`")
    found = by("recipe", cells)
    for recipe, part in found.items():
        _refuse_mixed(out, recipe, part)
    return {recipe: _summary(recipe, part, before_folder(out, recipe), params) for recipe, part in found.items()}


def _summary(recipe: str, cells: Sequence[Kept], before: Path, params: Params) -> RecipeSummary:
    settings, normal = cells[0]["settings"], plain_of(recipe)
    resamples = measured_by(settings["benchmark"]).numbers(params).bootstrap
    tables = {(cell["variant"], cell["seed"]): _by_group(cell["folder"]) for cell in cells}
    bare = _by_group(before)
    rows, painters = {}, {BARE: before}
    for name, mine in by("variant", cells).items():
        seeds = [cell["seed"] for cell in mine]
        common = [seed for seed in seeds if (normal, seed) in tables and name != normal]
        measures: dict[int, dict[str, CellChange]] = {}
        for size, measure in bare:
            base, after = bare[size, measure], np.stack([tables[name, seed][size, measure] for seed in seeds])
            pair = [np.stack([tables[v, s][size, measure] for s in common]) for v in (name, normal) if common]
            measures.setdefault(size, {})[measure] = CellChange(
                crossed_estimate(base, resamples=resamples),
                crossed_estimate(after, resamples=resamples),
                crossed_estimate(after, base, resamples=resamples),
                crossed_estimate(*pair, resamples=resamples) if pair else None,
            )
        trainings = {cell["seed"]: {**cell["training"], "run": cell["run"]} for cell in mine}
        title = next(variant.title for variant in VARIANTS if variant.name == name)
        rows[name] = VariantRow(title, mine[0]["changes"], measures, trainings)
        painters[name] = mine[0]["folder"]
    return RecipeSummary(recipe, rows, settings, resamples, painters)


def _by_group(folder: Path) -> dict[tuple[int, str], np.ndarray]:
    """(size, measure) -> mean of each group (a prompt, or a source picture) over its cases, groups in sorted order."""
    means = read_table(folder).drop(columns=["prompt_id", "seed"]).groupby(["size", "group"]).mean()
    return {(int(str(size)), str(name)): of[name].to_numpy() for size, of in means.groupby("size") for name in means}
