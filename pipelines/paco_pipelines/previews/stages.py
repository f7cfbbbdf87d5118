"""What the page of a stage shows beside its figures: what its declaration previews, as Dagster's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dvc_project.project import Stage
from paco_core.io import paths
from paco_core.runtime.stage import skipped
from paco_core.stages import declaration
from paco_pipelines.previews.tables import metadata_value


def preview_metadata(root: Path, stage: Stage) -> Mapping[str, Any]:
    """Tables and pictures of a stage's outs; of one that had nothing to do, the reason."""
    reasons = [reason for out in stage.data if (reason := skipped(root / out))]
    if reasons:
        return {"skipped": reasons[0]}
    preview = declaration(stage.group).preview
    found = preview(*_place(root, stage)) if preview else {}
    return {name: metadata_value(value) for name, value in found.items()}


def _place(root: Path, stage: Stage) -> tuple[Path, str]:
    """The folder and the item that a stage's declaration previews: of a round its own, as the graph's stage has them.

    A round has one policy, that of ``rounds.recipe``, and its pictures are one shard.
    """
    if paths.in_round(stage.group) is None or stage.item is None:
        return root / paths.DATA, stage.item or ""
    out = Path(stage.data[0])
    return root / paths.ROUNDS / stage.item, out.name if out.parent.name == paths.POLICIES.name else stage.item
