"""Modules that the stages import when they run, because their files import them late."""

from __future__ import annotations

from pathlib import Path

from paco_core import stages
from paco_core.runtime.code.closure import Code
from paco_core.runtime.code.source import parse_source


def imported_by(*names: str) -> list[str]:
    """The modules of this project that the files of these stages import, without what their declarations import."""
    code = Code(Path(stages.__file__).parents[2])
    imports = {
        module for name in names for module in parse_source((stages.FOLDER / f"{name}.py").read_bytes(), name).imports
    }
    return sorted(module for module in imports if code.file(module))
