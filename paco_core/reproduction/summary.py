"""From kept cells to the table: what each variant gains over the bare model, and how it compares with the full recipe.

Pictures before and after share prompt and noise, variants share prompts, noise and training seeds, so every
difference is taken case by case. Intervals are for other prompts and other training seeds (both drawn anew).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from paco_core.benchmarks.results import jsonable
from paco_core.benchmarks.statistics import Estimate, crossed_estimate
from paco_core.files import DataError
from paco_core.reproduction.cells import Kept
from paco_core.reproduction.variants import FULL, VARIANTS

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Table = NDArray[np.float64]  # (training seeds, prompts)

CASE = ["size", "prompt_id", "seed"]


@dataclass(frozen=True)
class Change:
    """One measure at one size: before training, after it, the change, and the change less the full recipe's."""

    before: Estimate
    after: Estimate
    change: Estimate
    over_full: Estimate | None  # None for the full recipe, and where they share no seed

    def as_dict(self) -> dict[str, Any]:
        return {name: None if found is None else found.as_dict() for name, found in vars(self).items()}


@dataclass(frozen=True)
class Row:
    """One variant over its seeds."""

    variant: str
    title: str
    changes: Mapping[str, Any]  # of keys
    measures: Mapping[int, Mapping[str, Change]]  # size -> measure
    trainings: Mapping[int, Mapping[str, Any]]  # seed -> what was told of it
    runs: Mapping[int, str | None]  # seed -> MLflow run

    @property
    def seeds(self) -> list[int]:
        return list(self.trainings)

    def told(self, name: str) -> list[float]:
        """A figure of the trainings, one a seed; NaN where it has none."""
        return [np.nan if t.get(name) is None else float(t[name]) for t in self.trainings.values()]

    def as_dict(self) -> dict[str, Any]:
        sizes = {
            str(size): {name: change.as_dict() for name, change in found.items()}
            for size, found in self.measures.items()
        }
        return {
            "title": self.title,
            "changes": dict(self.changes),
            "measures": sizes,
            "trainings": {str(seed): {**t, "run": self.runs[seed]} for seed, t in self.trainings.items()},
        }


@dataclass(frozen=True)
class Summary:
    """The rows, and what they rest on."""

    name: str
    rows: list[Row]
    settings: Mapping[str, Any]
    resamples: int

    @property
    def train_size(self) -> int:
        """Of the recipe as it is."""
        return int(self.settings[self.settings["recipe"]]["train_size"])

    @property
    def full(self) -> Row | None:
        return self.row(FULL)

    def row(self, variant: str) -> Row | None:
        return next((row for row in self.rows if row.variant == variant), None)

    @property
    def sizes(self) -> list[int]:
        return sorted({size for row in self.rows for size in row.measures})

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows for found in row.measures.values() for name in found))

    def as_dict(self) -> dict[str, Any]:
        tree: dict[str, Any] = jsonable(
            {
                "name": self.name,
                "settings": dict(self.settings),
                "resamples": self.resamples,
                "variants": {row.variant: row.as_dict() for row in self.rows},
            }
        )
        return tree


def of_one_basis(cells: Sequence[Kept]) -> list[Kept]:
    """The cells, when they can stand in one table.

    Raises:
        DataError: when there is none, when they rest on different settings or data, or when a variant meant
            something else at the time; naming folders.
    """
    if not cells:
        raise DataError("no cell is finished yet; run `paco reproduce`")
    meant = {variant.name: jsonable(dict(variant.changes)) for variant in VARIANTS}
    other = [cell for cell in cells if dict(cell.changes) != meant[cell.variant]]
    if other:
        raise DataError(f"{other[0].folder}: variant {other[0].variant} meant {dict(other[0].changes)} then; remove it")
    by_basis: dict[str, list[Kept]] = {}
    for cell in cells:
        by_basis.setdefault(cell.basis, []).append(cell)
    if len(by_basis) > 1:
        groups = "; ".join(f"{basis}: {', '.join(c.folder.name for c in found)}" for basis, found in by_basis.items())
        raise DataError(
            f"the cells in {cells[0].folder.parent} rest on different settings, prompts, reward or models ({groups}); "
            "remove those that are out of date, or give another --name"
        )
    return list(cells)


def summarise(name: str, cells: Sequence[Kept], before: pd.DataFrame, resamples: int, seed: int = 0) -> Summary:
    """The rows of kept cells.

    Args:
        before: the bare model's table.
    """
    tables = {(cell.variant, cell.seed): _by_prompt(cell.table) for cell in cells}
    bare = _by_prompt(before)
    draws = {"resamples": resamples, "seed": seed}
    rows = []
    for variant in VARIANTS:
        mine = [cell for cell in cells if cell.variant == variant.name]
        if not mine:
            continue
        common = [cell.seed for cell in mine if (FULL, cell.seed) in tables and variant.name != FULL]
        measures: dict[int, dict[str, Change]] = {}
        for size, measure in bare:
            after = np.stack([tables[variant.name, cell.seed][size, measure] for cell in mine])
            base = bare[size, measure]
            over = None
            if common:
                own, full = (np.stack([tables[v, s][size, measure] for s in common]) for v in (variant.name, FULL))
                over = crossed_estimate(own - full, **draws)
            measures.setdefault(size, {})[measure] = Change(
                crossed_estimate(base, **draws),
                crossed_estimate(after, **draws),
                crossed_estimate(after - base, **draws),
                over,
            )
        trainings, runs = {c.seed: c.training for c in mine}, {c.seed: c.run for c in mine}
        rows.append(Row(variant.name, variant.title, variant.changes, measures, trainings, runs))
    return Summary(name, rows, cells[0].settings, resamples)


def _by_prompt(table: pd.DataFrame) -> dict[tuple[int, str], Table]:
    """(size, measure) -> mean over the painting's seeds of each prompt, prompts in sorted order."""
    found: dict[tuple[int, str], Table] = {}
    for size, rows in table.groupby("size", sort=True):
        means = rows.drop(columns=["size", "seed"]).groupby("prompt_id", sort=True).mean()
        found |= {(int(str(size)), str(name)): means[name].to_numpy(dtype=np.float64) for name in means.columns}
    return found
