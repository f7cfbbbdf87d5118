"""From kept cells to a recipe's figures: what each variant gains over its bare model, and over the recipe as it is.

Pictures before and after share prompt and noise, variants share prompts, noise and training seeds, so every
difference is taken case by case. Intervals are for other prompts and other training seeds (both drawn anew).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paco_core.benchmarks.statistics import Estimate, crossed_estimate
from paco_core.config.params import Params
from paco_core.experiments.grid import RESULT, Variant, kept_result
from paco_core.experiments.reproduction.cells import before_folder, measured
from paco_core.experiments.reproduction.variants import VARIANTS
from paco_core.io.answer import plain
from paco_core.io.files import DataError, read_json
from paco_core.tasks.table import measured_by

if TYPE_CHECKING:
    from paco_core.tasks.base import Task

BARE = "before training"  # who painted, beside the variants


@dataclass(frozen=True, eq=False)
class KeptCell:
    """A finished cell.

    Attributes:
        training: what is reported of it, and its MLflow ``run``, if any.
        fits: whether it rests on the basis on which its recipe's bare model was examined last, and its variant changes
            the same keys now. Only cells that fit stand in one table.
    """

    variant: Variant
    seed: int
    folder: Path
    settings: Mapping[str, Any]
    training: Mapping[str, Any]
    fits: bool


def kept_cells(out: Path) -> list[KeptCell]:
    """Finished cells below a folder, in the order of the variants and seeds; other folders are passed over.

    Raises:
        DataError: when a result lacks a part.
    """
    found, variants = [], {variant.name: variant for variant in VARIANTS}
    for path in (out / "cells").glob(f"*/{RESULT}"):
        kept = read_json(path)
        try:
            if (variant := variants.get(kept["variant"])) is None:
                continue
            bare = kept_result(before_folder(out, variant.recipe), kept["basis"])
            fits = bare is not None and kept["changes"] == plain(variant.changes)
            training = {**kept["training"], "run": kept["run"]}
            found.append(KeptCell(variant, kept["seed"], path.parent, kept["settings"], training, fits))
        except KeyError as part:
            raise DataError(f"{path}: has no {part}; remove it and run `paco reproduce` again") from None
    return sorted(found, key=lambda cell: (VARIANTS.index(cell.variant), cell.seed))


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
    trainings: Mapping[int, Mapping[str, Any]]  # seed -> :attr:`KeptCell.training`

    def figures(self, name: str) -> list[float]:
        """A figure of the trainings, one a seed; NaN where it has none."""
        return [np.nan if t.get(name) is None else float(t[name]) for t in self.trainings.values()]


@dataclass(frozen=True)
class RecipeSummary:
    """One recipe's variants, and what they rest on.

    Attributes:
        task: what the recipe trains for.
        plain: the variant that is the recipe as it is, which the others are compared with; None where it has no cell.
        painters: the bare model and each variant under its first seed -> folder with pictures.
    """

    recipe: str
    task: Task
    settings: Mapping[str, Any]
    resamples: int
    variants: Mapping[str, VariantRow]
    plain: str | None
    sizes: Sequence[int]
    measures: Sequence[str]
    painters: Mapping[str, Path]


def summarise(out: Path, cells: Sequence[KeptCell], params: Params) -> dict[str, RecipeSummary]:
    """A summary of each recipe, of cells that fit, in the order in which :func:`kept_cells` gives them."""
    found = {}
    for recipe in dict.fromkeys(str(cell.variant.recipe) for cell in cells):
        part = [cell for cell in cells if cell.variant.recipe == recipe]
        found[recipe] = _summary(recipe, part, before_folder(out, recipe), params)
    return found


def _summary(recipe: str, cells: Sequence[KeptCell], before: Path, params: Params) -> RecipeSummary:
    settings = cells[0].settings
    task = measured_by(settings["benchmark"])
    resamples = task.numbers(params).bootstrap
    normal = next(variant for variant in VARIANTS if variant.recipe == recipe and not variant.changes)
    tables = {(cell.variant, cell.seed): _by_group(cell.folder) for cell in cells}
    bare = _by_group(before)
    rows, painters = {}, {BARE: before}
    for variant, part in groupby(cells, lambda cell: cell.variant):
        mine = list(part)
        common = [cell.seed for cell in mine if (normal, cell.seed) in tables and variant is not normal]
        measures: dict[int, dict[str, CellChange]] = {}
        for (size, measure), base in bare.items():
            after = np.stack([tables[variant, cell.seed][size, measure] for cell in mine])
            pair = [np.stack([tables[v, s][size, measure] for s in common]) for v in (variant, normal) if common]
            measures.setdefault(size, {})[measure] = CellChange(
                crossed_estimate(base, resamples=resamples),
                crossed_estimate(after, resamples=resamples),
                crossed_estimate(after, base, resamples=resamples),
                crossed_estimate(*pair, resamples=resamples) if pair else None,
            )
        trainings = {cell.seed: cell.training for cell in mine}
        rows[variant.name] = VariantRow(variant.title, variant.changes, measures, trainings)
        painters[variant.name] = mine[0].folder
    sizes, names = sorted({size for size, _ in bare}), list(dict.fromkeys(measure for _, measure in bare))
    plain = normal.name if normal.name in rows else None
    return RecipeSummary(recipe, task, settings, resamples, rows, plain, sizes, names, painters)


def _by_group(folder: Path) -> dict[tuple[int, str], np.ndarray]:
    """(size, measure) -> mean of each group (a prompt, or a source picture) over its cases, groups in sorted order.

    NaN for a group with a failed case: a mean over the rest would be over other cases than in another table.
    """
    means = measured(folder).groupby(["size", "group"]).mean(skipna=False)
    return {(int(str(size)), str(name)): of[name].to_numpy() for size, of in means.groupby("size") for name in means}
