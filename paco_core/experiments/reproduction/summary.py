"""From kept cells to a recipe's table: what each variant gains over its bare model, and over the recipe as it is.

Pictures before and after share prompt and noise, variants share prompts, noise and training seeds, so every
difference is taken case by case. Intervals are for other prompts and other training seeds (both drawn anew).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paco_core.benchmarks.statistics import Estimate, crossed_estimate
from paco_core.experiments.reproduction.cells import FinishedCell, of_recipes
from paco_core.experiments.reproduction.variants import VARIANTS, plain_of
from paco_core.io.answer import plain
from paco_core.io.files import DataError
from paco_core.tasks.table import measured_by

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from paco_core.tasks.base import Task

    Table = NDArray[np.float64]  # (groups of cases,)


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

    variant: str
    title: str
    changes: Mapping[str, Any]  # of keys
    measures: Mapping[int, Mapping[str, CellChange]]  # size -> measure
    trainings: Mapping[int, Mapping[str, Any]]  # seed -> what was reported of it, and its MLflow ``run``, if any

    @property
    def seeds(self) -> list[int]:
        return list(self.trainings)

    def figures(self, name: str) -> list[float]:
        """A figure of the trainings, one a seed; NaN where it has none."""
        return [np.nan if t.get(name) is None else float(t[name]) for t in self.trainings.values()]


@dataclass(frozen=True)
class RecipeSummary:
    """One recipe's rows, and what they rest on."""

    recipe: str
    rows: list[VariantRow]
    settings: Mapping[str, Any]
    resamples: int

    @property
    def train_size(self) -> int:
        """Of the recipe as it is."""
        return int(self.settings[self.recipe]["train_size"])

    @property
    def plain(self) -> VariantRow | None:
        """The recipe as it is."""
        return self.row(plain_of(self.recipe))

    @property
    def task(self) -> Task:
        """What the recipe trains for."""
        return measured_by(self.settings["benchmark"])

    def row(self, variant: str) -> VariantRow | None:
        return next((row for row in self.rows if row.variant == variant), None)

    @property
    def sizes(self) -> list[int]:
        return sorted({size for row in self.rows for size in row.measures})

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for found in row.measures.values() for name in found))

    def as_dict(self) -> dict[str, Any]:
        rows = [asdict(row) for row in self.rows]
        variants = {row.pop("variant"): row for row in rows}
        tree = {"settings": dict(self.settings), "resamples": self.resamples, "variants": variants}
        return dict(plain(tree))


def by_recipe(cells: Sequence[FinishedCell]) -> dict[str, list[FinishedCell]]:
    """The cells of each recipe, which can stand in one table.

    Raises:
        DataError: when there is none, when those of a recipe rest on different settings or data, or when a variant
            meant something else at the time; naming folders.
    """
    if not cells:
        raise DataError("no cell is finished yet; run `paco reproduce`")
    found = of_recipes(cells)
    for part in found.values():
        _refuse_mixed(part)
    return found


def _refuse_mixed(cells: Sequence[FinishedCell]) -> None:
    meant = {variant.name: plain(dict(variant.changes)) for variant in VARIANTS}
    other = [cell for cell in cells if dict(cell.changes) != meant[cell.variant]]
    if other:
        raise DataError(f"{other[0].folder}: variant {other[0].variant} meant {dict(other[0].changes)} then; remove it")
    by_basis: dict[str, list[FinishedCell]] = {}
    for cell in cells:
        by_basis.setdefault(cell.basis, []).append(cell)
    if len(by_basis) > 1:
        groups = "; ".join(f"{basis}: {', '.join(c.folder.name for c in found)}" for basis, found in by_basis.items())
        raise DataError(
            f"the cells in {cells[0].folder.parent} have different settings, prompts, reward or models ({groups}); "
            "remove those that are out of date, or give another --name"
        )


def summarise(
    recipe: str, cells: Sequence[FinishedCell], before: pd.DataFrame, resamples: int, seed: int = 0
) -> RecipeSummary:
    """The rows of a recipe's kept cells.

    Args:
        before: the bare model's table.
    """
    tables = {(cell.variant, cell.seed): _by_group(cell.table) for cell in cells}
    bare, plain = _by_group(before), plain_of(recipe)
    draws = {"resamples": resamples, "seed": seed}
    rows = []
    for variant in VARIANTS:
        mine = [cell for cell in cells if cell.variant == variant.name]
        if not mine:
            continue
        common = [cell.seed for cell in mine if (plain, cell.seed) in tables and variant.name != plain]
        measures: dict[int, dict[str, CellChange]] = {}
        for size, measure in bare:
            after = np.stack([tables[variant.name, cell.seed][size, measure] for cell in mine])
            base = bare[size, measure]
            over = None
            if common:
                own, other = (np.stack([tables[v, s][size, measure] for s in common]) for v in (variant.name, plain))
                over = crossed_estimate(own, other, **draws)
            measures.setdefault(size, {})[measure] = CellChange(
                crossed_estimate(base, **draws),
                crossed_estimate(after, **draws),
                crossed_estimate(after, base, **draws),
                over,
            )
        trainings = {c.seed: {**c.training, "run": c.run} for c in mine}
        rows.append(VariantRow(variant.name, variant.title, dict(variant.changes), measures, trainings))
    return RecipeSummary(recipe, rows, cells[0].settings, resamples)


def _by_group(table: pd.DataFrame) -> dict[tuple[int, str], Table]:
    """(size, measure) -> mean of each group (a prompt, or a source picture) over its cases, groups in sorted order."""
    found: dict[tuple[int, str], Table] = {}
    for size, rows in table.groupby("size", sort=True):
        means = rows.drop(columns=["size", "prompt_id", "seed"]).groupby("group", sort=True).mean()
        found |= {(int(str(size)), str(name)): means[name].to_numpy(dtype=np.float64) for name in means.columns}
    return found
