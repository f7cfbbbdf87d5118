"""`paco sweep`: the reward model under several settings and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paco_core.benchmarks.tables import write_tables
from paco_core.config.changes import changed, changes_of
from paco_core.experiments.grid import Grid, begin, folder_of, needed
from paco_core.experiments.reward_sweep import ALPHAS, cell, rows_of, tables, variant
from paco_core.io import paths
from paco_core.io.answer import Answer, plain
from paco_core.io.files import DataError, read_json, write_json


def sweep(root: Path, alphas: Sequence[str] | None, seeds: Sequence[int], changes: Sequence[str], name: str) -> Answer:
    """Run a sweep, write its tables below ``data/sweeps/NAME`` and return them as Markdown.

    Args:
        alphas: see :func:`paco_core.experiments.reward_sweep.variant`; :data:`ALPHAS` when None.
        changes: further ``key=value`` of ``params.yaml``, dotted keys, for all cells.

    Raises:
        DataError: for a setting or change that means nothing, a name that is none, when the pairs were not made yet, or
            an experiment fails.
        ParamsError: when the changed parameters are invalid.
    """
    out = folder_of(root / paths.DATA / "sweeps", name)
    names = list(alphas or ALPHAS)
    variants = [variant(name) for name in names]
    if len(set(names)) < len(names):
        raise DataError(f"a setting is given twice: {', '.join(names)}")
    params = begin(root, changes, seeds)
    cells = [cell(each, seed, changes_of(changes)) for each in variants for seed in seeds]
    for each in cells:
        changed(params, each.changes)
    needed(root, paths.PAIRS / "benchmark.parquet")
    results = Grid(root, out).run(cells)
    if not results:
        raise DataError(f"no cell of {name} is finished yet: another command is training them")
    rows = rows_of(results, params)
    write_json(out / "results.json", plain(rows))
    write_tables(out, f"Sweep {out.name}", tables(rows))
    return Answer((out / "results.md").read_text(encoding="utf-8"), read_json(out / "results.json"))
