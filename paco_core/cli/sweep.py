"""`paco sweep`: the reward under several settings and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paco_core.experiments import grid
from paco_core.experiments.reward_sweep import ALPHAS, Sweep, variant
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.files import DataError, read_json


def sweep(root: Path, alphas: Sequence[str] | None, seeds: Sequence[int], changes: Sequence[str], name: str) -> Answer:
    """Run a sweep below ``data/sweeps/NAME`` and return its tables as Markdown.

    Args:
        alphas: see :func:`paco_core.experiments.reward_sweep.variant`; :data:`ALPHAS` when None.
        changes: further ``key=value`` of ``params.yaml``, dotted keys, for all cells.

    Raises:
        DataError: for a setting or change that means nothing, a name that is none, or when the data were not made yet.
        ParamsError: when the changed parameters are invalid.
    """
    out = grid.folder_of(root / paths.DATA / "sweeps", name)
    names = list(alphas or ALPHAS)
    variants = [variant(name) for name in names]
    if len(set(names)) < len(names):
        raise DataError(f"a setting is given twice: {', '.join(names)}")
    Sweep(root, grid.begin(root, changes, seeds), out).run(variants, seeds)
    return Answer((out / "results.md").read_text(encoding="utf-8"), read_json(out / "results.json"))
