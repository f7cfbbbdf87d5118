"""Measures before and after training, paired: equal prompts, equal noise, every evaluation size.

Differences are per image. Intervals are over prompts, or over source images of edits, because the images of one group
are not independent: an English and a Chinese instruction about one image, for example.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from paco_core.benchmarks.statistics import Estimate, estimate, estimate_difference
from paco_core.grpo.metrics import LEVEL
from paco_core.io.answer import to_jsonable
from paco_core.sampling.generated_image import AFTER, BEFORE

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Change:
    """One measure of one policy at one size, over the cases with a score before and after."""

    before: Estimate
    after: Estimate
    change: Estimate


@dataclass(frozen=True)
class PairedChanges:
    """policy -> size -> measure -> change, and how they were made; ``layouts``: the same for each layout of prompts."""

    changes: Mapping[str, Mapping[int, Mapping[str, Change]]]
    prompts: int
    seeds: tuple[int, ...]
    steps: int
    layouts: Mapping[str, PairedChanges] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The content of ``results.json``."""
        tree = {
            "prompts": self.prompts,
            "seeds": self.seeds,
            "steps": self.steps,
            "level": LEVEL,
            "policies": self.changes,
        }
        if self.layouts:
            tree["layouts"] = {layout: part.as_dict() for layout, part in self.layouts.items()}
        cleaned: dict[str, Any] = to_jsonable(tree)
        return cleaned

    def metrics(self) -> dict[str, float]:
        """The flat metrics for DVC and MLflow: ``<policy>.px<size>.<measure>.<before|after|change>``.

        Those of a layout have its name after the measure: ``flux.px64.consistency.1x3.after``.
        """
        metrics: dict[str, float] = {"prompts": self.prompts}
        for suffix, part in (("", self), *((f".{layout}", part) for layout, part in self.layouts.items())):
            for policy, sizes in part.changes.items():
                metrics |= flat_changes(sizes, f"{policy}.", suffix)
        return metrics


def flat_changes(sizes: Mapping[int, Mapping[str, Change]], prefix: str = "", suffix: str = "") -> dict[str, float]:
    """Metrics of one policy, named ``<prefix>px<size>.<measure><suffix>.<before|after|change>``."""
    metrics: dict[str, float] = {}
    for size, row in sizes.items():
        for name, change in row.items():
            key = f"{prefix}px{size}.{name}{suffix}"
            metrics |= {f"{key}.before": change.before.mean, f"{key}.after": change.after.mean}
            metrics |= change.change.metrics(f"{key}.change")
    return metrics


def compare_changes(
    table: pd.DataFrame,
    *,
    seeds: Sequence[int],
    steps: int,
    group: str = "prompt_id",
    columns: Sequence[str] = (),
    resamples: int = 2000,
    seed: int = 0,
) -> PairedChanges:
    """Paired changes of a table of :func:`paco_core.benchmarks.generated.measure_images` (or several, concatenated).

    Args:
        group: column of what is drawn for the intervals.
        columns: further columns that are no measures.

    Raises:
        ValueError: when an image before has no partner after, or the other way round.
    """
    identity = list(dict.fromkeys(["policy", "size", "prompt_id", "seed", group, *columns]))
    names = [column for column in table.columns if column not in (*identity, "when")]
    wide = table.pivot(index=identity, columns="when", values=names)
    if set(table["when"]) != {BEFORE, AFTER} or len(wide) * 2 != len(table):
        raise ValueError("every (policy, size, prompt, seed) needs one picture before and one after training")
    changes: dict[str, dict[int, dict[str, Change]]] = {}
    for cell, rows in wide.groupby(level=["policy", "size"], sort=True):
        draws: dict[str, Any] = {
            "groups": list(rows.index.get_level_values(group)),
            "resamples": resamples,
            "seed": seed,
        }
        row = {}
        for name in names:
            before, after = (rows[(name, phase)].to_numpy(dtype="float64") for phase in (BEFORE, AFTER))
            failed = np.isnan(before) | np.isnan(after)  # on either side: the means are over what both have
            before, after = (np.where(failed, np.nan, values) for values in (before, after))
            row[name] = Change(
                estimate(before, **draws), estimate(after, **draws), estimate_difference(after, before, **draws)
            )
        changes.setdefault(str(cell[0]), {})[int(str(cell[1]))] = row
    return PairedChanges(changes, table["prompt_id"].nunique(), tuple(seeds), steps)


def with_layouts(
    changes: PairedChanges, table: pd.DataFrame, layouts: Mapping[str, str], **options: Any
) -> PairedChanges:
    """Add the changes of each layout, if prompts have several.

    Args:
        table: that ``changes`` are of.
        layouts: of the prompts, by id.
        options: arguments of :func:`compare_changes`.
    """
    names = list(dict.fromkeys(layouts.values()))
    if len(names) < 2:
        return changes
    column = table["prompt_id"].map(layouts)
    return replace(changes, layouts={name: compare_changes(table[column == name], **options) for name in names})
