"""A training as one process a device, started by ``accelerate launch`` in this process's place.

``PACO_ACCELERATE_CONFIG`` names the file that says how many and where; without it ``launch/ddp.yaml``, or
``launch/cpu.yaml`` where the training's device is the processor.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from paco_core.files import DataError

CONFIG = "PACO_ACCELERATE_CONFIG"


def command(stage: str, item: str | None, root: Path, device: str) -> list[str]:
    """What starts the ranks of a stage.

    Raises:
        DataError: when the configuration is no file.
    """
    config = root / os.environ.get(CONFIG, f"launch/{'cpu' if device == 'cpu' else 'ddp'}.yaml")
    if not config.is_file():
        raise DataError(f"{config}: no such file; {CONFIG} names accelerate's configuration, see launch/")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config)]
    return [*launch, "-m", "paco_core", "run", stage, *(["--item", item] if item else [])]


def become(stage: str, item: str | None, root: Path, device: str) -> NoReturn:
    """Start the ranks in this process's place: signals, pipes and the exit status stay those of the stage."""
    start = command(stage, item, root, device)
    os.execv(start[0], start)  # noqa: S606 (no shell is wanted)
