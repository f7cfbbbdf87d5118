"""Image sets before and after RL: equal prompts, equal noise, every evaluation size, paired figures.

The prompts were never trained on. Differences are taken set by set and their intervals over prompts,
for the pictures of one prompt stand or fall together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from paco_core.benchmarks.cases import Cases
from paco_core.benchmarks.painting import AFTER, BEFORE, Painted, unseen_prompts
from paco_core.benchmarks.results import flat, jsonable
from paco_core.benchmarks.set_measures import set_measures
from paco_core.benchmarks.statistics import LEVEL, Comparison, Estimate, compare, estimate
from paco_core.data.records.records import read_prompts
from paco_core.io import paths
from paco_core.rewards.base import RewardBatch, RewardFunction
from paco_core.tasks.sets import SETS

if TYPE_CHECKING:
    import numpy as np

    from paco_core.config.params import Params
    from paco_core.tasks.base import GoldMeasure, Read


def cases(read: Read, params: Params, trained: Collection[str]) -> Cases:
    """Prompts, none of an id in ``trained`` nor on the theme of one.

    Raises:
        DataError: when none is left.
    """
    chosen = params.t2is
    records = read_prompts(read(paths.PROMPTS) / "prompts.jsonl")
    return Cases(SETS, unseen_prompts(records, trained, chosen.prompts, chosen.seed), chosen.seeds, chosen.steps)


def measuring(root: Path, params: Params, judge: Path, _cases: Cases) -> Callable[[Sequence[Painted]], pd.DataFrame]:
    """:func:`measure` with the measures that the parameters ask for, by the merged reward model in ``judge``."""
    functions, gold = set_measures(root, params, judge), SETS.truth(params, root / str(params.annotations.model))
    return lambda painted: measure(painted, functions, gold)


def measure(
    painted: Sequence[Painted], measures: Sequence[RewardFunction], gold: GoldMeasure | None = None
) -> pd.DataFrame:
    """One row a picture: policy, size, when, prompt_id, seed, and a column a measure (NaN = it failed)."""
    batch = RewardBatch([p.record for p in painted], [p.panels for p in painted])
    columns: dict[str, Any] = {
        "policy": [p.policy for p in painted],
        "size": [p.size for p in painted],
        "when": [p.when for p in painted],
        "prompt_id": [p.record.idx for p in painted],
        "seed": [p.seed for p in painted],
    }
    found: dict[str, np.ndarray] = {function.name: function(batch) for function in measures}
    if gold is not None:
        found |= gold.measure(batch)
    return pd.DataFrame({**columns, **found})


@dataclass(frozen=True)
class Change:
    """One measure of one policy at one size."""

    before: Estimate
    after: Estimate
    change: Comparison

    def as_dict(self) -> dict[str, Any]:
        return {
            "before": self.before.as_dict(),
            "after": self.after.as_dict(),
            "change": self.change.as_dict(),
        }


@dataclass(frozen=True)
class Result:
    """policy -> size -> measure -> change, and how the figures were made."""

    changes: Mapping[str, Mapping[int, Mapping[str, Change]]]
    prompts: int
    seeds: tuple[int, ...]
    steps: int

    def as_dict(self) -> dict[str, Any]:
        """The content of ``results.json``."""
        policies = {
            policy: {str(size): {name: change.as_dict() for name, change in row.items()} for size, row in sizes.items()}
            for policy, sizes in self.changes.items()
        }
        tree = {
            "prompts": self.prompts,
            "seeds": list(self.seeds),
            "steps": self.steps,
            "level": LEVEL,
            "policies": policies,
        }
        cleaned: dict[str, Any] = jsonable(tree)
        return cleaned

    def metrics(self) -> dict[str, float]:
        """The flat figures for DVC and MLflow: ``<policy>.px<size>.<measure>.<before|after|change>``."""
        found: dict[str, float] = {"prompts": self.prompts}
        for policy, sizes in self.changes.items():
            for size, row in sizes.items():
                for name, change in row.items():
                    key = f"{policy}.px{size}.{name}"
                    found |= {f"{key}.before": change.before.mean, f"{key}.after": change.after.mean}
                    found |= flat(f"{key}.change", change.change)
        return found


def summarise(
    table: pd.DataFrame,
    *,
    seeds: Sequence[int],
    steps: int,
    group: str = "prompt_id",
    about: Sequence[str] = (),
    resamples: int = 2000,
    seed: int = 0,
) -> Result:
    """Paired figures of a table that :func:`measure` made (or several, concatenated).

    Args:
        group: column of what is drawn for the intervals: rows that agree in it stand or fall together.
        about: further columns that measure nothing.

    Raises:
        ValueError: when a picture before has no partner after, or the other way round.
    """
    identity = list(dict.fromkeys(["policy", "size", "prompt_id", "seed", group, *about]))
    names = [column for column in table.columns if column not in (*identity, "when")]
    wide = table.pivot(index=identity, columns="when", values=names)
    if set(table["when"]) != {BEFORE, AFTER} or len(wide) * 2 != len(table):
        raise ValueError("every (policy, size, prompt, seed) needs one picture before and one after training")
    changes: dict[str, dict[int, dict[str, Change]]] = {}
    for cell, rows in wide.groupby(level=["policy", "size"], sort=True):
        policy, size = str(cell[0]), int(str(cell[1]))
        draws: dict[str, Any] = {
            "groups": list(rows.index.get_level_values(group)),
            "resamples": resamples,
            "seed": seed,
        }
        found = {}
        for name in names:
            before, after = (rows[(name, when)].to_numpy(dtype="float64") for when in (BEFORE, AFTER))
            found[name] = Change(estimate(before, **draws), estimate(after, **draws), compare(after, before, **draws))
        changes.setdefault(policy, {})[size] = found
    return Result(changes, table["prompt_id"].nunique(), tuple(seeds), steps)
