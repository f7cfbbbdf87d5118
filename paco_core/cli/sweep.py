"""`paco sweep`: the reward under several settings and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paco_core.experiments import grid
from paco_core.experiments.reward_sweep import ALPHAS, Sweep, setting
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.files import DataError, read_json


def sweep(root: Path, alphas: Sequence[str] | None, seeds: Sequence[int], changes: Sequence[str], name: str) -> Answer:
    """Run a sweep below ``data/sweeps/NAME`` and return its tables as Markdown.

    Args:
        alphas: see :func:`paco_core.experiments.reward_sweep.setting`; :data:`ALPHAS` when None.
        changes: further ``key=value`` of ``params.yaml``, dotted keys, for all cells.

    Raises:
        DataError: for a setting or change that means nothing, a name that is none, or when the data were not made yet.
        ParamsError: when the changed parameters are invalid.
    """
    out = grid.folder_of(root / paths.DATA / "sweeps", name)
    settings = [setting(alpha) for alpha in alphas or ALPHAS]
    names = [s.name for s in settings]
    if len(set(names)) < len(names):
        raise DataError(f"a setting is given twice: {', '.join(names)}")
    params = grid.begin(root, changes, seeds)
    Sweep(root, params, out, grid.say).run(settings, seeds)
    return Answer((out / "results.md").read_text(encoding="utf-8"), read_json(out / "results.json"))
