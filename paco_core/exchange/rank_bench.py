"""Format of ConsistencyRank-Bench: rankings, prompts, and panels as ``images/<folder>/<panel>_<seed>.png``.

    consistency_full_rank.jsonl   {"folder", "ref_image", "comp_images": [4], "rank_images": [4], best first}
    prompt_data.jsonl             {"idx" (= folder), "prompt", "theme", "criteria", ...}

:func:`read_rank_bench` reads a folder in this format, exported or published, with the columns of
``data/pairs/benchmark.parquet``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from paco_core.data.pairs.leakage import HeldOut
from paco_core.data.pairs.pairs import BENCHMARK_COLUMNS
from paco_core.data.records.prompt_content import text_contents
from paco_core.data.records.records import PromptRecord, parse_ref, write_prompts
from paco_core.data.tables import parse_text
from paco_core.exchange.panel_files import PanelWriter
from paco_core.io.files import DataError, UniqueIds, checked_name, digest, inside, read_jsonl, write_jsonl
from paco_core.io.pictures import image_size, picture_digest, read_image
from paco_core.io.rejected import Rejected
from paco_core.io.text import validate_marks

if TYPE_CHECKING:
    from PIL.Image import Image

RANKS, PROMPTS, IMAGES = "consistency_full_rank.jsonl", "prompt_data.jsonl", "images"
CACHED_PICTURES = 2048


def write_rank_bench(
    folder: Path, benchmark: pd.DataFrame, prompts: Iterable[PromptRecord], grids: pd.DataFrame, pictures: PanelWriter
) -> None:
    """Write held-out rankings (``data/pairs/benchmark.parquet``).

    Args:
        grids: index of the shards; the ``seed`` of a grid becomes the second number of an image's name.
    """
    used = set(benchmark["prompt_id"])
    write_prompts(folder / PROMPTS, (record for record in prompts if record.idx in used))

    seeds = dict(zip(grids["id"], grids["seed"], strict=True))

    def file_name(prompt_id: str, ref: str) -> str:
        grid_id, panel = parse_ref(ref)
        name = f"{panel}_{int(seeds[grid_id])}.png"
        pictures.write(ref, f"{IMAGES}/{prompt_id}/{name}")
        return name

    def row(benchmark_row: dict[Any, Any]) -> dict[str, Any]:
        names = [file_name(benchmark_row["prompt_id"], ref) for ref in benchmark_row["candidates"]]
        return {
            "folder": benchmark_row["prompt_id"],
            "ref_image": file_name(benchmark_row["prompt_id"], benchmark_row["reference"]),
            "comp_images": names,
            "rank_images": [names[position] for position in benchmark_row["ranking"]],
        }

    write_jsonl(folder / RANKS, (row(benchmark_row) for benchmark_row in benchmark.to_dict("records")))


@dataclass
class RankBench:
    """A benchmark in a folder. ``panel`` reads images by the references of ``table``."""

    folder: Path
    table: pd.DataFrame  # columns of data/pairs/benchmark.parquet; a reference is "<folder>/<picture>"
    prompts: dict[str, str]  # folder -> prompt text
    contents: frozenset[str] = frozenset()  # of all prompts, as text_contents returns them
    rejected: Rejected = field(default_factory=Rejected)
    places: list[str] = field(default_factory=list)  # file:line of each row of the table

    def __post_init__(self) -> None:
        self._read = lru_cache(maxsize=CACHED_PICTURES)(read_image)

    @property
    def refs(self) -> list[str]:
        """All references and candidates."""
        return sorted(set(self.table["reference"]).union(*self.table["candidates"]))

    def path(self, ref: str) -> Path:
        return self.folder / IMAGES / ref

    def panel(self, ref: str) -> Image:
        """Read one image.

        Raises:
            DataError: if it is missing or damaged.
        """
        return self._read(self.path(ref))

    def held_out(self) -> HeldOut:
        """Prompts and images to exclude from training if this benchmark is used."""
        return HeldOut(self.contents, frozenset(picture_digest(self.panel(ref)) for ref in self.refs))


def read_rank_bench(folder: Path) -> RankBench:
    """Read a benchmark; prompts and rankings that cannot be used are counted as rejected, with file and line.

    Raises:
        DataError: when a file is missing, or no ranking can be used.
    """
    rejected = Rejected()
    prompts = _prompts(folder / PROMPTS, rejected)
    texts = {key: str(row.get("prompt") or "") for key, row in prompts.items()}
    prompt_texts = [str(row[key]) for row in prompts.values() for key in ("prompt", "theme") if row.get(key)]
    bench = RankBench(folder, pd.DataFrame(), texts, text_contents(*prompt_texts), rejected)
    size_of = cache(lambda name: image_size(inside(folder / IMAGES, name)))
    sizes: dict[str, tuple[int, int]] = {}
    rows, instance_ids = [], set()
    for number, raw in read_jsonl(folder / RANKS, rejected.lines_of(folder / RANKS)):
        place = f"{folder / RANKS}:{number}"
        try:
            row = _row(raw, prompts, size_of, sizes)
            if row[0] in instance_ids:
                raise DataError("duplicate: the same reference and candidates were ranked on an earlier line")
        except DataError as error:
            rejected.add(place, str(error))
            continue
        instance_ids.add(row[0])
        bench.places.append(place)
        rows.append(row)
    if not rows:
        ranking_rejects = Rejected([entry for entry in rejected if entry[0].startswith(f"{folder / RANKS}:")])
        raise DataError(
            f"{folder / RANKS}: none of its {len(ranking_rejects)} rankings can be used{ranking_rejects.example}"
        )
    bench.table = pd.DataFrame(rows, columns=list(BENCHMARK_COLUMNS))
    return bench


def _prompts(file: Path, rejected: Rejected) -> dict[str, dict[str, Any]]:
    """The prompts by id, which is the name of an image folder."""
    rows, names = dict[str, dict[str, Any]](), UniqueIds()
    for number, row in read_jsonl(file, rejected.lines_of(file)):
        try:
            name = checked_name(parse_text(row.get("idx"), "idx"))
            names.add(name, number)
            if row.get("prompt") is not None:
                parse_text(row["prompt"], "prompt")
        except DataError as error:
            rejected.add(f"{file}:{number}", f"prompt: {error}")
            continue
        rows[name] = row
    return rows


def _row(
    raw: dict[str, Any],
    prompts: dict[str, dict[str, Any]],
    size_of: Callable[[str], tuple[int, int]],
    sizes: dict[str, tuple[int, int]],
) -> tuple[Any, ...]:
    """A row of the benchmark's table. ``sizes`` collects the image sizes of each prompt."""
    name, reference = raw.get("folder"), raw.get("ref_image")
    candidates, ranked = raw.get("comp_images"), raw.get("rank_images")
    if not isinstance(candidates, list) or not isinstance(ranked, list) or len(candidates) < 2:
        raise DataError("record: comp_images and rank_images must be lists of two or more names")
    if not all(isinstance(picture, str) for picture in (*candidates, *ranked)):
        raise DataError("record: comp_images and rank_images must name pictures by strings")
    if len(set(candidates)) != len(candidates) or sorted(ranked) != sorted(candidates):
        raise DataError(f"ranking: rank_images {ranked} does not order each of comp_images {candidates} once")
    try:
        name = parse_text(name, "folder")
    except DataError as error:
        raise DataError(f"record: {error}") from None
    if name not in prompts:
        raise DataError(f"prompt: {PROMPTS} has none with idx {name!r}")
    theme = prompts[name].get("theme") or prompts[name].get("prompt")
    if not isinstance(theme, str) or not theme:
        raise DataError(f"prompt: {PROMPTS} gives neither theme nor prompt for idx {name!r}")
    try:
        validate_marks(theme)
    except ValueError as error:
        raise DataError(f"prompt: idx {name!r}: {error}") from None
    for picture in (reference, *candidates):
        try:
            size = size_of(f"{name}/{_name(picture)}")
        except DataError as error:
            raise DataError(f"picture: {error}") from None
        if sizes.setdefault(name, size) != size:
            raise DataError(
                f"picture: {name}/{picture} is {size[0]} x {size[1]} px, others of its prompt {sizes[name][0]} x "
                f"{sizes[name][1]}"
            )
    refs = [f"{name}/{picture}" for picture in candidates]
    order = [candidates.index(picture) for picture in ranked]
    instance_id = digest([f"{name}/{reference}", refs], 16)
    return instance_id, name, theme, f"{name}/{reference}", refs, order, [math.nan] * len(refs), False


def _name(picture: object) -> str:
    """The name of an image in the folder of its prompt."""
    if not isinstance(picture, str) or not picture or "/" in picture or picture.startswith("."):
        raise DataError(f"{picture!r} is not a picture name")
    return picture
