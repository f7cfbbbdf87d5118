"""The headlines of the page: what was measured before a training and after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paco_core.config.params import Params
from paco_core.io import paths
from paco_core.report.figures import Figures
from paco_core.report.trained import PolicyPart


@dataclass(frozen=True)
class Tile:
    """One headline: from a number to a number, in words."""

    title: str
    before: str
    after: str
    change: str
    words: str


def measure_of(params: Params, measure: str) -> str:
    """What consistency or editing is measured by: the gold metric where this world has one."""
    return f"gold_{measure}" if params.world == "storybook" else measure


def times(size: int, train_size: int) -> str:
    """How much larger a size is than that of the training, to stand before "the size"."""
    relation = size / train_size
    return {1.0: "", 2.0: "twice "}.get(relation, f"{relation:g} times ")


def tiles(params: Params, painted: list[PolicyPart], edited: list[PolicyPart], figures: Figures) -> list[Tile]:
    """The judge, and each policy at each size."""
    found = []
    rank = paths.CONSISTENCY_RANK.name
    if f"{rank}.comparisons.reward - base.accuracy.mean" in figures.values:
        chance = figures.values[f"{rank}.methods.random.metrics.accuracy.mean"]
        found.append(
            Tile(
                "The judge",
                f"{rank}.methods.base.metrics.accuracy.mean",
                f"{rank}.methods.reward.metrics.accuracy.mean",
                f"{rank}.comparisons.reward - base.accuracy",
                "of ranking places right on prompts it never saw, untrained and trained "
                f"(a random order: {chance:.2f})",
            )
        )
    for part in painted:
        what = "of panel pairs belong together"
        found += _change_tiles(part, measure_of(params, "consistency"), "The painter", what)
    for part in edited:
        what = "of its edits did what was asked and changed nothing else"
        found += _change_tiles(part, measure_of(params, "editing"), part.name, what)
    return found


def _change_tiles(part: PolicyPart, measure: str, title: str, what: str) -> Iterator[Tile]:
    """A policy's measure before and after training, at each size."""
    rows = [row for table in part.tables for row in table.rows if row.key.endswith(f".{measure}")]
    for row in rows:
        yield Tile(
            f"{title} at {row.size} px",
            f"{row.key}.before.mean",
            f"{row.key}.after.mean",
            f"{row.key}.change",
            f"{what}, before and after training, at {times(row.size, part.train_size)}the size it trained at",
        )
