"""`paco sweep`: the reward under several settings and seeds."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from paco_core.config.params import PARAMS_FILE, load
from paco_core.experiments.cells import changed, changes_of
from paco_core.experiments.reward_sweep import ALPHAS, Sweep, setting
from paco_core.io.files import DataError
from paco_core.runtime.tracking import Terminated


def sweep(root: Path, alphas: Sequence[str] | None, seeds: Sequence[int], changes: Sequence[str], name: str) -> str:
    """Run a sweep below ``data/sweeps/NAME`` and return its tables as Markdown.

    Args:
        alphas: see :func:`paco_core.experiments.reward_sweep.setting`; :data:`ALPHAS` when None.
        changes: further ``key=value`` of ``params.yaml``, dotted keys, for all cells.

    Raises:
        DataError: for a setting or change that means nothing, or when the data were not made yet.
        ParamsError: when the changed parameters are invalid.
    """
    settings = [setting(alpha) for alpha in alphas or ALPHAS]
    if len(set(settings_names := [s.name for s in settings])) < len(settings) or len(set(seeds)) < len(seeds):
        raise DataError(f"a setting or seed comes twice: {', '.join(settings_names)}; seeds {list(seeds)}")
    params = changed(load(root / PARAMS_FILE), changes_of(changes))
    out = root / "data" / "sweeps" / name
    os.environ.setdefault("OMP_NUM_THREADS", str(params.threads))  # before torch, which reads it once
    signal.signal(signal.SIGTERM, _on_sigterm)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    Sweep(root, params, out, say).run(settings, seeds)
    return (out / "results.md").read_text()


def _on_sigterm(_signal: int, _frame: object) -> None:
    raise Terminated
