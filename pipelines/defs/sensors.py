"""What is watched. Every sensor is off until it is switched on."""

from __future__ import annotations

import dagster as dg

from pipelines.defs.graph import PROJECT, TRANSLATOR
from pipelines.dvc import build_dvc_lock_sensor


def sensors() -> list[dg.SensorDefinition]:
    """Runs from a terminal, or pulled with git, show up in Dagster: `dvc.lock` is mirrored."""
    return [build_dvc_lock_sensor(PROJECT, translator=TRANSLATOR)]
