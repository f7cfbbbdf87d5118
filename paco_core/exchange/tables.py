"""Plain Parquet that ``datasets.load_dataset`` opens with decoded images: one file per split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Features, List, Value
from datasets import Image as ImageFeature

from paco_core.io.shards import encode_png

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

PAIR_TEXTS = ("pair_id", "prompt_id", "theme", "label", "instruction", "question", "answer")
ROWS_AT_ONCE = 64  # a row group: 200 MB of 1024 px panels


def write_parquet_tables(
    folder: Path, pairs: Mapping[str, pd.DataFrame], benchmark: pd.DataFrame, panel: Callable[[str], Image]
) -> None:
    """Write ``<split>.parquet`` for each table of labelled pairs, and ``benchmark.parquet``."""

    @lru_cache(maxsize=1024)
    def picture(ref: str) -> dict[str, Any]:
        return {"bytes": encode_png(panel(ref)), "path": f"{ref.replace('#', '_')}.png"}

    texts = {name: Value("string") for name in PAIR_TEXTS}
    features = Features({**texts, "first": ImageFeature(), "second": ImageFeature()})
    for split, table in pairs.items():
        rows = (
            {
                **{name: _text(row.get(name)) for name in PAIR_TEXTS},
                "first": picture(row["first"]),
                "second": picture(row["second"]),
            }
            for row in table.to_dict("records")
        )
        _write(folder / f"{split}.parquet", features, rows)
    ranked = Features(
        {
            **{name: Value("string") for name in ("instance_id", "prompt_id", "theme")},
            "reference": ImageFeature(),
            "candidates": List(ImageFeature()),
            "ranking": List(Value("int32")),  # candidate positions, best first
        }
    )
    num_held_out = (
        {
            **{name: row[name] for name in ("instance_id", "prompt_id", "theme")},
            "reference": picture(row["reference"]),
            "candidates": [picture(ref) for ref in row["candidates"]],
            "ranking": [int(position) for position in row["ranking"]],
        }
        for row in benchmark.to_dict("records")
    )
    _write(folder / "benchmark.parquet", ranked, num_held_out)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _write(file: Path, features: Any, rows: Iterator[dict[str, Any]]) -> None:
    schema = features.arrow_schema  # tells `datasets` which columns are images
    with pq.ParquetWriter(file, schema) as out:
        while part := list(islice(rows, ROWS_AT_ONCE)):
            out.write_table(pa.Table.from_pylist(part, schema=schema))
