"""Metadata of a stage for Dagster: tables and images of its outs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

from dvc_project.project import ResolvedStage
from paco_core.io import paths
from paco_core.runtime.preview import Chart, Page, Pictures, Preview, Table
from paco_core.runtime.stage import skip_reason
from paco_core.stages import declaration

if TYPE_CHECKING:
    import pandas as pd

CHARACTERS = 160  # of a text


def preview_metadata(root: Path, stage: ResolvedStage) -> Mapping[str, Any]:
    """Tables and pictures of a stage's outs; of one that had nothing to do, the reason."""
    reasons = [reason for out in stage.data if (reason := skip_reason(root / out))]
    if reasons:
        return {"skipped": reasons[0]}
    preview = declaration(stage.group).preview
    previews = preview(*_place(root, stage)) if preview else {}
    return {name: metadata_value(value) for name, value in previews.items()}


def _place(root: Path, stage: ResolvedStage) -> tuple[Path, str]:
    """The folder and the item that a stage's declaration previews: of a round its own, as the graph's stage has them.

    A round has one policy, that of ``rounds.recipe``, and its pictures are one shard.
    """
    if paths.in_round(stage.group) is None or stage.item is None:
        return root / paths.DATA, stage.item or ""
    out = Path(stage.data[0])
    return root / paths.ROUNDS / stage.item, out.name if out.parent.name == paths.POLICIES.name else stage.item


def metadata_value(preview: Preview) -> dg.MetadataValue[Any]:
    """What a stage previews, as metadata of its asset."""
    from paco_core.io.contact_sheet import draw_contact_sheet, preview_markdown

    match preview:
        case Table():
            return _table(preview.frame.head(preview.rows))
        case Pictures():
            sheet = draw_contact_sheet(preview.images, preview.columns, captions=preview.captions)
            return dg.MetadataValue.md(preview_markdown(sheet, preview.alt))
        case Chart():
            from paco_core.io.pictures import read_image

            return dg.MetadataValue.md(preview_markdown(read_image(preview.file), preview.file.stem))
        case Page():
            return dg.MetadataValue.path(str(preview.file))


def _table(frame: pd.DataFrame) -> dg.TableMetadataValue:
    """Numbers to four digits, long texts and lists cut, NaN as a dash."""
    records = [dg.TableRecord({str(k): _plain(v) for k, v in row.items()}) for row in frame.to_dict("records")]
    columns = [dg.TableColumn(str(name), str(frame[name].dtype)) for name in frame.columns]
    return dg.MetadataValue.table(records, dg.TableSchema(columns))


def _plain(value: Any) -> str | int | float | bool:
    if isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else "–"
    if isinstance(value, str):
        return value if len(value) <= CHARACTERS else value[: CHARACTERS - 1] + "…"
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return _plain(", ".join(str(_plain(v)) for v in value) if isinstance(value, (list, tuple)) else str(value))
