"""Grids: one image per prompt and seed, with all panels of the set, generated in shards.

An image depends on its prompt, seed, generator and settings, which its id digests; not on shard, order, worker or the
other images of its batch. It depends on the batch size by rounding only (:mod:`paco_core.data.grids.text_to_image`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from paco_core.config.references import model_content
from paco_core.data.grids.text_to_image import Request
from paco_core.data.records.panels import refuse_undivided
from paco_core.data.records.records import PromptRecord
from paco_core.data.seeds import seed_of
from paco_core.io.files import DataError, digest, md5_of
from paco_core.io.shards import GRID_COLUMNS, encode_png, write_shard
from paco_core.models.content import content_of
from paco_core.runtime import launchers

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import GridsParams


Say = Callable[[str], None]
Save = Callable[[str, bytes], object]  # takes the id of a grid and its PNG


class Generator(Protocol):
    """Paints pictures from text (``text_to_image.TextToImage``)."""

    def encode(self, requests: Sequence[Request]) -> int: ...

    def kind(self, request: Request) -> Hashable: ...

    def paint(self, requests: Sequence[Request], batch_size: int) -> list[Image]: ...


@dataclass(frozen=True)
class Painting:
    """All that decides how a prompt and seed become a picture, up to rounding, which batch size and device decide.

    Held: the generator by content (a hub's by commit), number format and settings; prompt, layout, size and seed are
    part of a picture's id (:func:`grid_jobs`).
    """

    model: str  # content digest of the generator, or its hub id
    dtype: str
    steps: int
    guidance: float
    max_sequence_length: int
    adapter: str | None = None  # content digest of the policy's adapter; None for the bare generator

    @classmethod
    def from_params(cls, params: GridsParams, root: Path, adapter: Path | None = None) -> Painting:
        """The recipe of these parameters; generator and adapter count by content, not by path."""
        model = model_content(root, params.model)
        policy = None if adapter is None else content_of(adapter)
        return cls(model, params.dtype, params.steps, params.guidance, params.max_sequence_length, policy)

    @property
    def digest(self) -> str:
        settings = [self.model, self.dtype, self.steps, self.guidance, self.max_sequence_length]
        return digest(settings if self.adapter is None else [*settings, self.adapter])


@dataclass(frozen=True)
class GridJob:
    """One grid to be painted."""

    id: str
    record: PromptRecord
    seed: int

    @property
    def request(self) -> Request:
        return Request(
            self.record.prompt, self.record.height, self.record.width, noise_seed(self.record.idx, self.seed)
        )


def noise_seed(prompt_id: str, seed: int) -> int:
    """Seed of a picture's noise, from prompt id and seed alone."""
    return seed_of(prompt_id, seed)


def grid_jobs(records: Sequence[PromptRecord], seeds: Sequence[int], recipe: Painting) -> list[GridJob]:
    """Every prompt with every seed, each under an id by content.

    Raises:
        DataError: when a picture does not divide into its panels, or a seed is given twice.
    """
    if len(set(seeds)) != len(seeds):
        raise DataError(f"grids.seeds {list(seeds)} holds a seed twice")
    refuse_undivided(records)
    jobs = []
    for record in records:
        key = [record.idx, record.prompt, record.layout, record.height, record.width, recipe.digest]
        jobs += [GridJob(digest([*key, seed], 16), record, seed) for seed in seeds]
    return jobs


class GridFiles(Mapping[str, bytes]):
    """Images in a folder, id -> PNG bytes: those of a shard need not fit into memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __getitem__(self, grid_id: str) -> bytes:
        try:
            return (self.folder / f"{grid_id}.png").read_bytes()
        except FileNotFoundError:
            raise KeyError(grid_id) from None

    def __contains__(self, grid_id: object) -> bool:
        return (self.folder / f"{grid_id}.png").is_file()

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self.folder.glob("*.png")))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def save(self, grid_id: str, png: bytes) -> None:
        (self.folder / f"{grid_id}.png").write_bytes(png)


def paint(
    jobs: Sequence[GridJob],
    save: Save,
    load: Callable[[], Generator],
    *,
    batch_size: int,
    say: Say,
    advance: Callable[[int], object] = lambda _count: None,
) -> int:
    """Generate the images of all jobs in batches of equal size; the generator loads only if there are any.

    ``advance`` is called with how many images were generated. If memory does not suffice, the batch is halved, which
    is said.

    Returns:
        The batch size at the end.

    Raises:
        DataError: when not even one image fits into memory.
    """
    if not jobs:
        return batch_size
    generator = load()
    if encoded := generator.encode([job.request for job in jobs]):
        say(f"{encoded} prompts encoded, each once; the text encoders are dropped")
    return _paint_batches(jobs, save, generator, batch_size=batch_size, say=say, advance=advance)


def _paint_batches(
    jobs: Sequence[GridJob],
    save: Save,
    generator: Generator,
    *,
    batch_size: int,
    say: Say,
    advance: Callable[[int], object] = lambda _count: None,
) -> int:
    """:func:`paint` with a generator that has its prompts."""
    by_kind: dict[Hashable, list[GridJob]] = {}
    for job in jobs:
        by_kind.setdefault(generator.kind(job.request), []).append(job)
    for queue in by_kind.values():
        while queue:
            batch = queue[:batch_size]
            try:
                made = generator.paint([job.request for job in batch], batch_size)
            except (RuntimeError, MemoryError) as error:
                batch_size = _halved(batch_size, batch[0], error, say)
                continue
            for job, image in zip(batch, made, strict=True):
                _check_size(job, image)
                save(job.id, encode_png(image))
            del queue[: len(batch)]
            advance(len(batch))
    return batch_size


def write_grids(folder: Path, jobs: Sequence[GridJob], images: GridFiles) -> None:
    """Write the images of the jobs, which may be none, as a shard, one in memory at a time."""
    rows: list[dict[str, Any]] = [
        {
            "id": job.id,
            "prompt_id": job.record.idx,
            "seed": job.seed,
            "layout": job.record.layout,
            "height": job.record.height,
            "width": job.record.width,
            "md5": md5_of(images[job.id]),
        }
        for job in jobs
    ]
    write_shard(folder, rows, images, columns=(*GRID_COLUMNS, "height", "width", "md5"))


def _halved(batch_size: int, job: GridJob, error: Exception, say: Say) -> int:
    """The next batch size after ``error``, which is raised again unless it is about memory."""
    if not _out_of_memory(error):
        raise error
    record = job.record
    if batch_size == 1:
        raise DataError(
            f"grid of prompt {record.idx}: one picture of {record.height} x {record.width} px does not fit "
            "into memory; lower grids.height and grids.width, or choose a smaller dtype or another device"
        ) from error
    _free_memory()
    say(f"out of memory with {batch_size} pictures at once; continuing with {batch_size // 2}")
    return batch_size // 2


def _out_of_memory(error: Exception) -> bool:
    """Whether it is CUDA's own error, or the plain one that the CPU allocator raises."""
    texts = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error).lower() for text in texts)


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _check_size(job: GridJob, image: Image) -> None:
    if (image.height, image.width) != (job.record.height, job.record.width):
        raise DataError(
            f"grid of prompt {job.record.idx}: {job.record.height} x {job.record.width} px were asked for, "
            f"the generator painted {image.height} x {image.width}; choose a size that it can paint"
        )


@dataclass
class PaintedBatch:
    """Pictures that a worker painted of a batch, and its messages."""

    pictures: dict[str, bytes]
    batch_size: int
    messages: list[str]


class GridPainter:
    """A worker: the generator loads once, and encodes every prompt of the run before it drops its encoders."""

    def __init__(self, load: Callable[[], Generator], requests: Sequence[Request], batch_size: int, _: int) -> None:
        self._generator, self._batch_size = load(), batch_size
        self._generator.encode(requests)

    def __call__(self, jobs: Sequence[GridJob]) -> PaintedBatch:
        images, messages = dict[str, bytes](), list[str]()
        # Memory that did not suffice once will not the next time.
        self._batch_size = _paint_batches(
            jobs, images.__setitem__, self._generator, batch_size=self._batch_size, say=messages.append
        )
        return PaintedBatch(images, self._batch_size, messages)


def paint_apart(
    jobs: Sequence[GridJob],
    save: Save,
    load: Callable[[], Generator],
    *,
    batch_size: int,
    gpu: bool,
    threads: int,
    say: Say,
    advance: Callable[[int], object] = lambda _count: None,
) -> int:
    """:func:`paco_core.data.grids.grids.paint` by workers of the chosen launcher.

    Raises:
        DataError: when not even one picture fits into a worker's memory.
    """
    by_size = sorted(jobs, key=lambda job: (job.record.height, job.record.width))
    batches = [by_size[start : start + batch_size] for start in range(0, len(by_size), batch_size)]
    make = partial(GridPainter, load, [job.request for job in by_size], batch_size)
    smallest = batch_size
    for number, made in launchers.map_pieces(batches, make, gpu=gpu, threads=threads):
        for line in made.messages:
            say(line)
        for grid_id, png in made.pictures.items():
            save(grid_id, png)
        smallest = min(smallest, made.batch_size)
        advance(len(batches[number]))
    return smallest
