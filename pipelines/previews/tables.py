"""Data frames and pictures as metadata, cut to what a page of Dagster should carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

ROWS, CHARACTERS = 10, 160


def table(frame: pd.DataFrame, rows: int = ROWS) -> dg.TableMetadataValue:
    """The first ``rows`` of a frame: numbers to four digits, long texts and lists cut, NaN as a dash."""
    records = [
        dg.TableRecord({str(k): _plain(v) for k, v in row.items()}) for row in frame.head(rows).to_dict("records")
    ]
    columns = [dg.TableColumn(str(name), str(frame[name].dtype)) for name in frame.columns]
    return dg.MetadataValue.table(records, dg.TableSchema(columns))


def pictures(images: Sequence[Image], columns: int, alt: str) -> dg.MarkdownMetadataValue:
    """One contact sheet of at most 48 KB."""
    from paco_core.io.contact_sheet import contact_sheet, preview_markdown

    return dg.MetadataValue.md(preview_markdown(contact_sheet(images, columns), alt))


def chart(file: Path) -> dg.MarkdownMetadataValue:
    """A stored chart, at most 48 KB of it."""
    from paco_core.io.contact_sheet import preview_markdown
    from paco_core.io.pictures import read_image

    return dg.MetadataValue.md(preview_markdown(read_image(file), file.stem))


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
