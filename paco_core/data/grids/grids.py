"""One picture a prompt and seed, each holding all panels of the set: painted in shards, resumable.

A picture depends on its prompt, seed, generator and settings, which its id digests; not on shard,
order or what is painted beside it. Of the batch size it depends by rounding alone
(:mod:`paco_core.data.grids.text_to_image`). Finished pictures are kept in a work folder outside the
stage's outs (DVC deletes outs before a run), so that a killed shard goes on where it stopped.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from paco_core.config.references import model_content
from paco_core.data.grids.divided import refuse_undivided
from paco_core.data.grids.text_to_image import Request
from paco_core.data.records.records import PromptRecord
from paco_core.io.content import content_of
from paco_core.io.files import DataError, digest, md5_of
from paco_core.io.seeds import seed_of
from paco_core.io.shards import GRID_COLUMNS, encode_png, write_shard

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import GridsParams

Say = Callable[[str], None]
PNG_END = b"IEND\xaeB`\x82"


class Store(Protocol):
    """Where finished pictures go (:class:`Finished`)."""

    def __contains__(self, grid_id: object) -> bool: ...

    def save(self, grid_id: str, png: bytes) -> None: ...


class Generator(Protocol):
    """Paints pictures from text (``text_to_image.TextToImage``)."""

    def encode(self, requests: Sequence[Request]) -> int: ...

    def kind(self, request: Request) -> Hashable: ...

    def paint(self, requests: Sequence[Request], batch_size: int) -> list[Image]: ...


@dataclass(frozen=True)
class Painting:
    """All that decides how a prompt and seed become a picture, up to rounding, which batch size and device decide.

    Held: the generator by content (a hub's by commit), number format and settings; prompt, layout, size and seed are
    part of a picture's id (:func:`grid_jobs`), code and libraries of the folder of unfinished pictures. The batch size
    is left out so that a run that goes on with less memory keeps what is painted.
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


class Finished(Mapping[str, bytes]):
    """Pictures painted so far, id -> PNG bytes, each a file that is whole or does not count."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _path(self, grid_id: str) -> Path:
        return self.folder / f"{grid_id}.png"

    def __contains__(self, grid_id: object) -> bool:
        path = self._path(str(grid_id))
        if not path.is_file() or path.stat().st_size < len(PNG_END):
            return False
        with path.open("rb") as stream:  # after a power cut a file may be shorter than what was written
            stream.seek(-len(PNG_END), os.SEEK_END)
            return stream.read() == PNG_END

    def __getitem__(self, grid_id: str) -> bytes:
        return self._path(grid_id).read_bytes()

    def __iter__(self) -> Iterator[str]:
        return (path.stem for path in sorted(self.folder.glob("*.png")))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def save(self, grid_id: str, png: bytes) -> None:
        part = self.folder / f".{grid_id}.part"  # one job is painted by one shard, so one writer
        part.write_bytes(png)
        part.replace(self._path(grid_id))

    def forget(self, grid_ids: Sequence[str]) -> None:
        """Remove pictures that now lie in a shard, and what a killed run left of them."""
        for grid_id in grid_ids:
            self._path(grid_id).unlink(missing_ok=True)
            (self.folder / f".{grid_id}.part").unlink(missing_ok=True)


@dataclass
class GridsPainted:
    """How painting went."""

    painted: int = 0
    resumed: int = 0
    batch_size: int = 0


def paint(
    jobs: Sequence[GridJob],
    finished: Store,
    load: Callable[[], Generator],
    *,
    batch_size: int,
    say: Say,
    advance: Callable[[int], object] = lambda _count: None,
) -> GridsPainted:
    """Paint the jobs that are not finished yet, in batches of equal size; the generator loads only if needed.

    ``advance`` is called with how many pictures were painted. When memory does not suffice, the batch is halved,
    which is said, and painting goes on.

    Raises:
        DataError: when not even one picture fits into memory.
    """
    pending = [job for job in jobs if job.id not in finished]
    result = GridsPainted(resumed=len(jobs) - len(pending), batch_size=batch_size)
    if result.resumed:
        say(f"{result.resumed} of {len(jobs)} pictures were painted by an earlier run")
    if not pending:
        return result
    generator = load()
    if encoded := generator.encode([job.request for job in pending]):
        say(f"{encoded} prompts encoded, each once; the text encoders are dropped")
    by_kind: dict[Hashable, list[GridJob]] = {}
    for job in pending:
        by_kind.setdefault(generator.kind(job.request), []).append(job)
    for queue in by_kind.values():
        while queue:
            batch = queue[: result.batch_size]
            try:
                images = generator.paint([job.request for job in batch], result.batch_size)
            except (RuntimeError, MemoryError) as error:
                result.batch_size = _halved(result.batch_size, batch[0], error, say)
                continue
            for job, image in zip(batch, images, strict=True):
                _check_size(job, image)
                finished.save(job.id, encode_png(image))
            del queue[: len(batch)]
            result.painted += len(batch)
            advance(len(batch))
    return result


def write_grids(folder: Path, jobs: Sequence[GridJob], finished: Finished) -> None:
    """Write finished pictures as a shard, one in memory at a time; every job must be finished, and may be none."""
    rows: list[dict[str, Any]] = [
        {
            "id": job.id,
            "prompt_id": job.record.idx,
            "seed": job.seed,
            "layout": job.record.layout,
            "height": job.record.height,
            "width": job.record.width,
            "md5": md5_of(finished[job.id]),
        }
        for job in jobs
    ]
    write_shard(folder, rows, finished, columns=(*GRID_COLUMNS, "height", "width", "md5"))


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
