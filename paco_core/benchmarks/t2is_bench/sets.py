"""The sets that are judged: those that the stage ``t2is`` painted, and those that others painted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.benchmarks.t2is_bench.questions import case_of
from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import PromptRecord, read_prompts, write_prompts
from paco_core.io.files import DataError
from paco_core.io.pictures import read_image
from paco_core.io.rejected import Rejected
from paco_core.io.shards import ShardReader, encode_png, write_shard
from paco_core.sampling.generated_image import AFTER, BEFORE, SEPARATELY, GeneratedImage

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES, RECORDS = "pictures", "prompts.jsonl"
SHARD = "all"
COLUMNS = ("policy", "px", "painted", "prompt_id", "seed")
#: ``<case>_<index>.png``, as the public evaluation names the pictures of a set.
ELSEWHERE = re.compile(r"(?P<case>.+)_(?P<index>[0-9]+)\.(?:png|jpe?g|webp)", re.IGNORECASE)
STATES = {
    BEFORE: "before training",
    AFTER: "after training",
    SEPARATELY: "before training, one picture at a time",
}


@dataclass(frozen=True)
class PaintedSet:
    """A set of panels: which method painted it, for which prompt, from which noise (None: not known).

    ``method`` is a key for figures, ``label`` says the same to people.
    """

    method: str
    label: str
    record: PromptRecord
    seed: int | None
    panels: Callable[[], Sequence[Image]]


def write_painted(folder: Path, generated: Sequence[GeneratedImage]) -> None:
    """Keep all pictures and their prompts in ``folder``, so that judging needs no painting."""
    ids = [f"{p.policy}-{p.size}-{p.when}-{p.record.idx}-{p.seed}" for p in generated]
    rows = [
        {"id": name, "policy": p.policy, "px": p.size, "painted": p.when, "prompt_id": p.record.idx, "seed": p.seed}
        for name, p in zip(ids, generated, strict=True)
    ]
    write_shard(folder / PICTURES / SHARD, rows, {n: encode_png(p.image) for n, p in zip(ids, generated, strict=True)})
    write_prompts(folder / RECORDS, {p.record.idx: p.record for p in generated}.values())


def read_records(folder: Path, limit: int | None) -> list[PromptRecord]:
    """The first ``limit`` prompts that :func:`write_painted` kept, which are in random order."""
    return read_prompts(folder / RECORDS)[:limit]


def painted_sets(folder: Path, records: Sequence[PromptRecord]) -> list[PaintedSet]:
    """What :func:`write_painted` kept of these prompts."""
    reader, sets = ShardReader.below(folder / PICTURES, require=COLUMNS), []
    for row in reader.index.to_dict("records"):
        policy, width, state = str(row["policy"]), int(row["px"]), str(row["painted"])
        sets += [
            PaintedSet(
                f"{policy}.px{width}.{state}",
                f"{policy} at {width} px, {STATES[state]}",
                record,
                int(row["seed"]),
                _cut(reader, str(row["id"]), record.layout),
            )
            for record in records
            if record.idx == row["prompt_id"]
        ]
    return sorted(sets, key=lambda s: (s.method.rpartition(".")[0], list(STATES).index(s.method.rpartition(".")[2])))


def _cut(reader: ShardReader, name: str, layout: str) -> Callable[[], Sequence[Image]]:
    return lambda: split_grid(reader.read(name), layout)


def sets_elsewhere(method: str, folder: Path, records: Iterable[PromptRecord], rejected: Rejected) -> list[PaintedSet]:
    """Sets of single pictures ``<case>_<index>.png``, numbered in reading order.

    Args:
        rejected: takes the cases that lack pictures, or have pictures that are damaged or of several sizes.

    Raises:
        DataError: when none can be used.
    """
    files: dict[str, list[tuple[int, Path]]] = {}
    for path in sorted(folder.iterdir()):
        if match := ELSEWHERE.fullmatch(path.name):
            files.setdefault(match["case"], []).append((int(match["index"]), path))
    sets = []
    for record in records:
        pictures = [path for _, path in sorted(files.get(case_of(record), []))]
        try:
            _check(pictures, record)
        except DataError as error:
            rejected.add(f"{folder}: case {case_of(record)}", str(error))
            continue
        sets.append(PaintedSet(method, method, record, None, _read(pictures)))
    if not sets:
        raise DataError(
            f"{folder}: no complete set of images <case>_<index>.png for the prompts of t2is{rejected.example}"
        )
    return sets


def _check(pictures: Sequence[Path], record: PromptRecord) -> None:
    rows, columns = record.grid
    if len(pictures) != rows * columns:
        raise DataError(f"set: {len(pictures)} pictures, its layout {record.layout} has {rows * columns}")
    try:
        sizes = {image.size for image in _read(pictures)()}  # whole, not their heads: they are judged much later
    except DataError as error:
        raise DataError(f"picture: {error}") from None
    if len(sizes) > 1:
        raise DataError(f"picture: one set has the sizes {', '.join(f'{w}x{h}' for w, h in sorted(sizes))}")


def _read(paths: Sequence[Path]) -> Callable[[], Sequence[Image]]:
    return lambda: [read_image(path) for path in paths]
