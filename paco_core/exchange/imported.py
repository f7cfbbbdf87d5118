"""Imported folders: tables of pairs or rankings, and a shard of images.

    train.parquet  validation.parquet   labelled pairs with answers (from PaCo-Dataset)
    benchmark.parquet  prompts.jsonl    rankings and their prompts (from ConsistencyRank-Bench)
    pictures/                           images.tar, index.parquet
    rejected.jsonl  summary.json        skipped rows, and the counts

``pairs.imported`` adds the pairs of such a folder to the project's pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from paco_core.data.pairs.pairs import CHARACTER, COLUMNS, QUESTION
from paco_core.data.records.records import panel_ref
from paco_core.exchange import rank_bench, sharegpt
from paco_core.exchange.panel_files import PictureFiles
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, digest, write_json, write_jsonl
from paco_core.io.rejected import Rejected

PICTURES = "pictures"


def import_pairs(folder: Path, out: Path) -> dict[str, Any]:
    """Import PaCo-Dataset into ``out``; returns the counts.

    Raises:
        DataError: if the folder is not a PaCo-Dataset, a line is not JSON, or no row can be used.
    """
    rejected, files = Rejected(), PictureFiles()
    rows_of: dict[str, list[tuple[sharegpt.ShareGptRow, tuple[Any, ...]]]] = {}  # rows of each pair
    for row in sharegpt.read_sharegpt(folder, rejected):
        theme, edit, template = row.question.theme, row.question.instruction, row.question.template
        name = row.question.name
        try:
            first = files.add(row.first, "")
            prompt_id = f"character-{first}" if name is not None else _prompt_id(theme, edit, first)
            second = files.add(row.second, prompt_id)
        except DataError as error:  # its head was sound, the rest is not
            rejected.add(str(row.first), f"picture: {error}")
            continue
        files.rows[first]["prompt_id"] = files.rows[first]["prompt_id"] or prompt_id
        has_order = edit is not None or name is not None
        images = (first, second) if has_order else sorted((first, second))
        pair_id = digest([*images, theme, edit, *filter(None, (template, name))], 16)
        refs = panel_ref(first, 0), panel_ref(second, 0)
        columns = (pair_id, prompt_id, theme or "", *refs, row.label, edit, row.answer, template, name)
        rows_of.setdefault(pair_id, []).append((row, columns))
    tables: dict[str, list[tuple[Any, ...]]] = {}  # by split
    for rows in rows_of.values():
        if len({row.label for row, _ in rows}) > 1:
            for row, _ in rows:
                rejected.add(_place(row), f"contradiction: the pair occurs with both answers, here {row.label}")
            continue
        (row, columns), *copies = rows
        tables.setdefault(row.split, []).append(columns)
        for copy, _ in copies:
            rejected.add(_place(copy), "duplicate: the pair occurs before")
    if not tables:
        raise DataError(f"{folder}: none of its {len(rejected)} rows can be used{rejected.example}")
    with atomic(out) as part:
        part.mkdir()
        for split, pairs in tables.items():
            pd.DataFrame(pairs, columns=[*COLUMNS, QUESTION, CHARACTER]).to_parquet(
                part / f"{split}.parquet", index=False
            )
        return _finish(part, files, rejected, {split: len(pairs) for split, pairs in tables.items()})


def _place(row: sharegpt.ShareGptRow) -> str:
    return f"{row.split}: {row.first.name}, {row.second.name}"


def _prompt_id(theme: str | None, edit: str | None, first: str) -> str:
    """The same id for pairs of one theme or one original image, so the split keeps them together."""
    if edit is None and theme is not None:
        return f"theme-{digest(theme)}"
    return f"edit-{first}" if edit is not None else f"picture-{first}"


def import_benchmark(folder: Path, out: Path) -> dict[str, Any]:
    """Import ConsistencyRank-Bench into ``out``; returns the counts.

    Raises:
        DataError: as :func:`paco_core.exchange.rank_bench.read_rank_bench`.
    """
    bench = rank_bench.read_rank_bench(folder)
    files, refs, damaged = PictureFiles(), dict[str, str](), dict[str, str]()
    for ref in bench.refs:
        try:
            refs[ref] = panel_ref(files.add(bench.path(ref), ref.partition("/")[0]), 0)
        except DataError as error:  # its head was sound, the rest is not
            damaged[ref] = str(error)
    table = _without(damaged, bench)
    table["reference"] = [refs[ref] for ref in table["reference"]]
    table["candidates"] = [[refs[ref] for ref in row] for row in table["candidates"]]
    with atomic(out) as part:
        part.mkdir()
        table.to_parquet(part / "benchmark.parquet", index=False)
        write_jsonl(part / "prompts.jsonl", ({"idx": key, "prompt": text} for key, text in bench.prompts.items()))
        return _finish(part, files, bench.rejected, {"benchmark": len(table), "prompts": len(bench.prompts)})


def _without(damaged: Mapping[str, str], bench: rank_bench.RankBench) -> pd.DataFrame:
    """The rankings without damaged images. The rest is rejected."""
    usable = []
    for place, row in zip(bench.places, bench.table.to_dict("records"), strict=True):
        lost = [damaged[ref] for ref in (row["reference"], *row["candidates"]) if ref in damaged]
        usable.append(not lost)
        if lost:
            bench.rejected.add(place, f"picture: {lost[0]}")
    if not any(usable):
        raise DataError(f"{bench.folder}: none of its rankings can be used{bench.rejected.example}")
    return bench.table[usable].copy()


def _finish(part: Path, files: PictureFiles, rejected: Rejected, counts: dict[str, Any]) -> dict[str, Any]:
    files.write(part / PICTURES)
    rejected.write(part / "rejected.jsonl")
    summary = {**counts, "pictures": len(files), **rejected.figures()}
    write_json(part / "summary.json", summary)
    return summary
