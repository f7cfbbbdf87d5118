"""Start a stage: the one body behind the terminal, Dagster and the schedules."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from paco_core.context import open_stage
from paco_core.params import PARAMS_FILE, ParamsError, load

STAGES = Path(__file__).parent / "stages"


def stage_names() -> list[str]:
    """Stages that exist, by their files."""
    return sorted(path.stem for path in STAGES.glob("*.py") if path.stem != "__init__")


def run_stage(name: str, item: str | None, root: Path) -> None:
    """Run ``paco_core.stages.<name>`` inside its context.

    Raises:
        ParamsError: for an unknown stage, or invalid parameters.
        DataError: when an input is missing or malformed.
    """
    if name not in stage_names():
        raise ParamsError(f"no stage {name!r}; stages: {', '.join(stage_names())}")
    # Before torch is imported anywhere: it reads the thread count once.
    os.environ.setdefault("OMP_NUM_THREADS", str(load(root / PARAMS_FILE).threads))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    with open_stage(name, item, root) as context:
        importlib.import_module(f"paco_core.stages.{name}").run(context)
