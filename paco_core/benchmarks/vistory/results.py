"""The figures of ViStoryBench from a table of painted stories, with intervals over stories, and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paco_core.benchmarks.statistics import Estimate, estimate
from paco_core.benchmarks.tables import ResultTable, interval
from paco_core.benchmarks.vistory.adherence import AdherenceToShots
from paco_core.benchmarks.vistory.similarity import SimilarityByClip

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.benchmarks.t2is_bench.measures import BenchmarkPart

ADHERENCE = "adherence"  # mean of its four columns, of those that a story has
COLUMNS = (*SimilarityByClip.columns, *AdherenceToShots.columns, ADHERENCE)


def figures(table: pd.DataFrame, *, resamples: int = 2000, seed: int = 0) -> dict[str, Estimate]:
    """Means over the stories that one method painted; what was not measured is left out.

    Args:
        table: one row a painted story: ``prompt_id`` and the measured columns.
    """
    groups = [str(name) for name in table["prompt_id"]]
    if asked := [name for name in AdherenceToShots.columns if name in table]:
        table = table.assign(**{ADHERENCE: table[asked].mean(axis=1)})
    found = {
        name: estimate(table[name].to_numpy(dtype="float64"), groups=groups, resamples=resamples, seed=seed)
        for name in COLUMNS
        if name in table
    }
    return {name: value for name, value in found.items() if value.count}


def tables(
    methods: Mapping[str, Mapping[str, Estimate]], parts: Mapping[str, BenchmarkPart], stories: int
) -> list[ResultTable]:
    """A row a method, and who measured what."""
    shown = [name for name in COLUMNS if any(name in row for row in methods.values())]
    rows = [[label, *(interval(row[name]) if name in row else "–" for name in shown)] for label, row in methods.items()]
    notes = [f"{name}: {part.judge}" for name, part in parts.items()]
    notes.append(
        f"{stories} stories, with 95% bootstrap intervals over them. Similarities are of whole panels, where "
        "ViStoryBench crops characters and embeds style by CSD; adherence is a probability of Yes, where it grades 0 "
        "to 4. Published figures are on other scales."
    )
    return [ResultTable("ViStoryBench", ["method", *shown], rows, notes)]
