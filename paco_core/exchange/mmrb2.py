"""Import of MMRB2 (Multimodal RewardBench 2, arXiv 2512.16899): its pairs of edits, in the layout of EditReward-Bench.

    comparisons.parquet   key, instruction, input_image, output_images (better first), task_type, dimension
    rejected.jsonl  summary.json

The import reads ``edit.json`` and its images, as ``benchmark/build_from_hf.py`` of facebookresearch/MMRB2 at revision
7ff0552 writes them. A usable pair has one input image, an instruction, and one image per response.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
from pyarrow import parquet
from pydantic import ConfigDict, Field, ValidationError

from paco_core.data.records.records import Id, Words
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, UniqueIds, inside, read_json, write_json
from paco_core.io.pictures import decode_image, read_encoded
from paco_core.io.rejected import Rejected
from paco_core.io.shards import encode_png
from paco_core.io.validation import StrictModel, first_validation_error

FILE, TABLE = "edit.json", "comparisons.parquet"
BENCHMARK_KEY, NAME = b"paco.benchmark", b"MMRB2"  # in the metadata of the table
ROWS_PER_GROUP = 8  # of the table: a reader has one group in memory

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMA = pa.schema(
    [
        ("key", pa.list_(pa.string())),
        ("instruction", pa.string()),
        ("input_image", _IMAGE),
        ("output_images", pa.list_(_IMAGE)),
        ("task_type", pa.string()),
        ("dimension", pa.string()),
    ],
    {BENCHMARK_KEY: NAME},
)

_Part = Annotated[list[str], Field(min_length=2, max_length=2)]  # kind ("text", "image"), and the text or path


class _Response(StrictModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model_name: str
    response_content: list[_Part]


class _Pair(StrictModel):
    model_config = ConfigDict(extra="ignore")

    id: Id
    prompt_content: list[_Part]
    response_a: _Response
    response_b: _Response
    chosen: Literal["A", "B"]


class _Prompt(StrictModel):
    instruction: Words


def import_mmrb2(source: Path, out: Path) -> dict[str, Any]:
    """Import ``edit.json``, or the folder that contains it, into the new folder ``out``; returns the counts.

    Pairs that cannot be used are skipped and written to ``rejected.jsonl``, with their position and cause.

    Raises:
        DataError: if the file is missing or has another layout, or no pair can be used.
    """
    file = source / FILE if source.is_dir() else source
    rejected, counts = Rejected(), Counter[str]()
    with atomic(out) as part:
        part.mkdir(parents=True)
        with parquet.ParquetWriter(part / TABLE, SCHEMA, compression="none") as writer:  # images are compressed
            rows: list[dict[str, Any]] = []
            for row in _rows(file, rejected):
                rows.append(row)
                counts["comparisons"] += 1
                if len(rows) == ROWS_PER_GROUP:
                    writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                    rows = []
            if rows:
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
        if not counts["comparisons"]:
            raise DataError(f"{file}: none of its {len(rejected)} pairs can be used{rejected.example}")
        rejected.write(part / "rejected.jsonl")
        summary = {**counts, **rejected.figures()}
        write_json(part / "summary.json", summary)
    return summary


def _rows(file: Path, rejected: Rejected) -> Iterator[dict[str, Any]]:
    """The rows of the table."""
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("pairs"), list):
        raise DataError(f"{file}: expected an object with the list pairs, as build_from_hf.py of MMRB2 writes it")
    names = UniqueIds()
    for number, entry in enumerate(content["pairs"]):
        try:
            row = _row(entry, file.parent)
            try:
                names.add(entry["id"], number)
            except DataError as error:
                raise DataError(f"duplicate: id {error}") from None
        except DataError as error:
            rejected.add(f"{file}: pairs[{number}]", str(error))
            continue
        yield row


def _row(entry: Any, folder: Path) -> dict[str, Any]:
    try:
        pair = _Pair.model_validate(entry)
        instruction = _Prompt(instruction=" ".join(_parts(pair.prompt_content, "text"))).instruction
    except ValidationError as error:
        raise DataError(f"record: {first_validation_error(error)}") from None
    sources = _parts(pair.prompt_content, "image")
    if len(sources) != 1:
        raise DataError(f"images: the prompt has {len(sources)} images, and the queries about an edit read one")
    edits = {"A": pair.response_a, "B": pair.response_b}
    images = {}
    for name, response in edits.items():
        outputs = _parts(response.response_content, "image")
        if len(outputs) != 1:
            raise DataError(f"images: response {name} has {len(outputs)} images, expected one")
        images[name] = _image(folder, outputs[0])
    order = [pair.chosen, "B" if pair.chosen == "A" else "A"]
    return {
        "key": [f"{pair.id} {name} ({edits[name].model_name})" for name in order],
        "instruction": instruction,
        "input_image": _image(folder, sources[0]),
        "output_images": [images[name] for name in order],
        "task_type": "edit",  # one class, because MMRB2's accuracy is the mean over pairs
        "dimension": "overall",
    }


def _parts(content: list[list[str]], kind: str) -> list[str]:
    return [value for name, value in content if name == kind]


def _image(folder: Path, name: str) -> dict[str, Any]:
    """An image as the table stores it. It is decoded to detect damage."""
    try:
        path = inside(folder, name)
        encoded = read_encoded(path)
        image = decode_image(encoded.data, str(path))
    except DataError as error:
        raise DataError(f"picture: {error}") from None
    return {"bytes": encoded.data if encoded.plain else encode_png(image), "path": None}
