"""Start a stage: the one body behind the terminal, Dagster and the schedules."""

from __future__ import annotations

import importlib
from pathlib import Path

from paco_core.context import open_stage
from paco_core.params import ParamsError

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
    with open_stage(name, item, root) as context:
        importlib.import_module(f"paco_core.stages.{name}").run(context)
