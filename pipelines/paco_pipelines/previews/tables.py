"""Data frames and pictures as metadata, cut to what a page of Dagster should carry."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import dagster as dg

from paco_core.runtime.preview import Chart, Page, Pictures, Preview, Table

if TYPE_CHECKING:
    import pandas as pd

CHARACTERS = 160  # of a text


def metadata_value(preview: Preview) -> dg.MetadataValue[Any]:
    """What a stage previews, as metadata of its asset."""
    from paco_core.io.contact_sheet import contact_sheet, preview_markdown

    match preview:
        case Table():
            return _table(preview.frame.head(preview.rows))
        case Pictures():
            sheet = contact_sheet(preview.images, preview.columns, captions=preview.captions)
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
