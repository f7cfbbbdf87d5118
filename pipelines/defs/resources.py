"""What assets ask for by name."""

from __future__ import annotations

from typing import Any

from pipelines.defs.graph import ROOT
from pipelines.dvc import DvcResource


def resources() -> dict[str, Any]:
    """DVC of this interpreter, in this project; a stopped stage has eight seconds to tidy up."""
    return {"dvc": DvcResource(project_dir=str(ROOT), grace_seconds=8)}
