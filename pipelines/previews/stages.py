"""What the page of a stage shows beside its figures: what its declaration previews, as Dagster's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dvc_project.project import Stage
from paco_core.io import paths
from paco_core.io.skipped import skipped
from paco_core.stages import declaration
from pipelines.previews.tables import drawn


def shown(root: Path, stage: Stage) -> Mapping[str, Any]:
    """Tables and pictures of a stage's outs; of one that had nothing to do, the reason."""
    reasons = [reason for out in stage.data if (reason := skipped(root / out))]
    if reasons:
        return {"skipped": reasons[0]}
    preview = declaration(stage.group).preview
    found = preview(root / paths.DATA, stage.item or "") if preview else {}
    return {name: drawn(value) for name, value in found.items()}
