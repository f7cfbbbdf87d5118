"""Figures before and after training, paired: equal prompts, equal noise, every evaluation size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from paco_core.benchmarks.results import flat
from paco_core.benchmarks.statistics import Estimate, compare, estimate
from paco_core.grpo.metrics import LEVEL
from paco_core.io.answer import plain
from paco_core.painting.painted import AFTER, BEFORE

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Change:
    """One measure of one policy at one size, over the cases with a score before and after."""

    before: Estimate
    after: Estimate
    change: Estimate

    def as_dict(self) -> dict[str, Any]:
        return {
            "before": self.before.as_dict(),
            "after": self.after.as_dict(),
            "change": self.change.as_dict(),
        }


@dataclass(frozen=True)
class PairedChanges:
    """policy -> size -> measure -> change, and how the figures were made.

    ``layouts``: the same of the prompts of each layout, where they have several.
    """

    changes: Mapping[str, Mapping[int, Mapping[str, Change]]]
    prompts: int
    seeds: tuple[int, ...]
    steps: int
    layouts: Mapping[str, PairedChanges] = field(default_factory=dict)

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
        if self.layouts:
            tree["layouts"] = {layout: part.as_dict() for layout, part in self.layouts.items()}
        cleaned: dict[str, Any] = plain(tree)
        return cleaned

    def metrics(self) -> dict[str, float]:
        """The flat figures for DVC and MLflow: ``<policy>.px<size>.<measure>.<before|after|change>``.

        Those of a layout have its name behind the measure: ``flux.px64.consistency.1x3.after``.
        """
        return {"prompts": self.prompts, **self._flat("")} | {
            name: value for layout, part in self.layouts.items() for name, value in part._flat(f".{layout}").items()
        }

    def _flat(self, behind: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for policy, sizes in self.changes.items():
            found |= flat_changes(sizes, f"{policy}.", behind)
        return found


def flat_changes(sizes: Mapping[int, Mapping[str, Change]], before: str = "", behind: str = "") -> dict[str, float]:
    """Figures of one policy, named ``<before>px<size>.<measure><behind>.<before|after|change>``."""
    found: dict[str, float] = {}
    for size, row in sizes.items():
        for name, change in row.items():
            key = f"{before}px{size}.{name}{behind}"
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
) -> PairedChanges:
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
            failed = np.isnan(before) | np.isnan(after)  # on either side: the means are over what both have
            before, after = (np.where(failed, np.nan, values) for values in (before, after))
            found[name] = Change(estimate(before, **draws), estimate(after, **draws), compare(after, before, **draws))
        changes.setdefault(policy, {})[size] = found
    return PairedChanges(changes, table["prompt_id"].nunique(), tuple(seeds), steps)


def with_layouts(whole: PairedChanges, table: pd.DataFrame, layouts: Mapping[str, str], **how: Any) -> PairedChanges:
    """The same with the figures of each layout, where prompts have several.

    Args:
        table: what ``whole`` was summarised from.
        layouts: of the prompts, by id.
        how: arguments of :func:`summarise`.
    """
    names = list(dict.fromkeys(layouts.values()))
    if len(names) < 2:
        return whole
    given = table["prompt_id"].map(layouts)
    return replace(whole, layouts={name: summarise(table[given == name], **how) for name in names})
