"""Import of GEdit-Bench: published tables with embedded images become the files that ``edit_prompts.file`` reads.

    edits.jsonl   key, instruction, input_image, task_type, instruction_language, Intersection_exist
    pictures/     one PNG per source image, named by its content
    rejected.jsonl  summary.json

The tables have the columns of ``stepfun-ai/GEdit-Bench``, or ``prompt`` and ``image`` as in PaCo-GRPO's split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pyarrow import parquet
from pydantic import ConfigDict, ValidationError

from paco_core.data.records.records import Id, Words
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, UniqueIds, digest, md5_of, write_json, write_jsonl
from paco_core.io.pictures import decode_image
from paco_core.io.rejected import Rejected
from paco_core.io.shards import encode_png
from paco_core.io.validation import StrictModel, first_validation_error

TASKS = (
    "background_change", "color_alter", "material_alter", "motion_change", "ps_human", "style_change", "subject-add",
    "subject-remove", "subject-replace", "text_change", "tone_transfer",
)  # fmt: skip
NAMES = {"prompt": "instruction", "image": "input_image"}  # of PaCo-GRPO's split -> of the benchmark


class _Picture(StrictModel):
    model_config = ConfigDict(extra="ignore")
    bytes: bytes


class _Row(StrictModel):
    model_config = ConfigDict(extra="ignore")

    key: Id | None = None
    instruction: Words
    instruction_language: Literal["en", "cn"] = "en"
    task_type: str | None = None
    Intersection_exist: bool | None = None
    input_image: _Picture


def import_gedit(source: Path, out: Path) -> dict[str, Any]:
    """Import a Parquet file, or a folder of Parquet files, into the new folder ``out``; returns the counts.

    Rows that cannot be used are skipped and written to ``rejected.jsonl``, with file, row and cause.

    Raises:
        DataError: if there is no Parquet file, one is damaged, or no row can be used.
    """
    rejected = Rejected()
    rows: list[dict[str, Any]] = []
    names, picture_names = UniqueIds(), set[str]()
    with atomic(out) as part:
        (part / "pictures").mkdir(parents=True)
        for number, (place, entry) in enumerate(_entries(source)):
            try:
                row, name, png = _usable(entry)
            except DataError as error:
                rejected.add(place, str(error))
                continue
            key = row.key or digest([name, row.instruction])
            try:
                names.add(key, number)
            except DataError as error:
                rejected.add(place, f"duplicate: key {error}")
                continue
            if name not in picture_names:
                picture_names.add(name)
                (part / "pictures" / f"{name}.png").write_bytes(png)
            fields = row.model_dump(exclude={"input_image", "key"}, exclude_none=True)
            rows.append({"key": key, "input_image": f"pictures/{name}.png", **fields})
        if not rows:
            raise DataError(f"{source}: none of its {len(rejected)} rows can be used{rejected.example}")
        write_jsonl(part / "edits.jsonl", rows)
        rejected.write(part / "rejected.jsonl")
        languages = Counter(row["instruction_language"] for row in rows)
        counts = {
            "edits": len(rows),
            "pictures": len(picture_names),
            **{f"language.{k}": n for k, n in sorted(languages.items())},
        }
        counts |= rejected.figures()
        write_json(part / "summary.json", counts)
    return counts


def _entries(source: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    files = [source] if source.is_file() else sorted(source.rglob("*.parquet"))
    if not files:
        raise DataError(f"{source}: no Parquet file there; expected GEdit-Bench as it is published")
    for file in files:
        row = 0
        try:
            for batch in parquet.ParquetFile(file).iter_batches(batch_size=16):
                for entry in batch.to_pylist():
                    yield f"{file}: row {row}", {NAMES.get(name, name): value for name, value in entry.items()}
                    row += 1
        except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of these
            cause = " ".join(str(error).split())[:300]
            raise DataError(f"{file}: not a readable Parquet file ({cause}); replace it with a complete copy") from None


def _usable(entry: dict[str, Any]) -> tuple[_Row, str, bytes]:
    """The row, the name of its image, and the image as PNG."""
    try:
        row = _Row.model_validate(entry)
    except ValidationError as error:
        raise DataError(f"record: {first_validation_error(error)}") from None
    if row.task_type is not None and row.task_type not in TASKS:
        raise DataError(f"record: task_type {row.task_type!r} is none of GEdit-Bench's eleven")
    try:
        png = encode_png(decode_image(row.input_image.bytes, "input_image"))
    except DataError as error:
        raise DataError(f"picture: {error}") from None
    return row, md5_of(png)[:16], png
