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
from paco_core.data.records.panels import validate_divisible
from paco_core.data.records.records import PromptRecord
from paco_core.data.seeds import seed_of
from paco_core.io.files import DataError, digest, md5_of
from paco_core.io.shards import GRID_COLUMNS, encode_png, write_shard
from paco_core.models.content import content_of
from paco_core.runtime import launchers

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import GridsParams


Log = Callable[[str], None]
Save = Callable[[str, bytes], object]  # takes the id of a grid and its PNG


class Generator(Protocol):
    """Generates pictures from text (``text_to_image.TextToImage``)."""

    def encode(self, requests: Sequence[Request]) -> int: ...

    def kind(self, request: Request) -> Hashable: ...

    def generate(self, requests: Sequence[Request], batch_size: int) -> list[Image]: ...


@dataclass(frozen=True)
class GenerationSettings:
    """The settings that determine the picture of a prompt and seed, up to rounding by batch size and device.

    The generator is identified by its content, or by the commit of a hub model. Prompt, layout, size and seed are not
    settings but part of the id of a picture (:func:`grid_jobs`).
    """

    model: str  # content digest of the generator, or its hub id
    dtype: str
    steps: int
    guidance: float
    max_sequence_length: int
    adapter: str | None = None  # content digest of the policy's adapter; None for the bare generator

    @classmethod
    def from_params(cls, params: GridsParams, root: Path, adapter: Path | None = None) -> GenerationSettings:
        """The settings of these parameters. Generator and adapter are identified by content, not by path."""
        model = model_content(root, params.model)
        policy = None if adapter is None else content_of(adapter)
        return cls(model, params.dtype, params.steps, params.guidance, params.max_sequence_length, policy)

    @property
    def digest(self) -> str:
        settings = [self.model, self.dtype, self.steps, self.guidance, self.max_sequence_length]
        return digest(settings if self.adapter is None else [*settings, self.adapter])


@dataclass(frozen=True)
class GridJob:
    """One grid to generate."""

    id: str
    record: PromptRecord
    seed: int

    @property
    def request(self) -> Request:
        return Request(
            self.record.prompt, self.record.height, self.record.width, noise_seed(self.record.idx, self.seed)
        )


def noise_seed(prompt_id: str, seed: int) -> int:
    """The seed of the noise of a picture; it depends only on prompt id and seed."""
    return seed_of(prompt_id, seed)


def grid_jobs(records: Sequence[PromptRecord], seeds: Sequence[int], recipe: GenerationSettings) -> list[GridJob]:
    """One job per prompt and seed. The id of a job is a digest of its content.

    Raises:
        DataError: if a picture does not divide into its panels, or a seed occurs twice.
    """
    if len(set(seeds)) != len(seeds):
        raise DataError(f"grids.seeds {list(seeds)} contains a seed twice")
    validate_divisible(records)
    jobs = []
    for record in records:
        key = [record.idx, record.prompt, record.layout, record.height, record.width, recipe.digest]
        jobs += [GridJob(digest([*key, seed], 16), record, seed) for seed in seeds]
    return jobs


class GridFiles(Mapping[str, bytes]):
    """Images in a folder, id -> PNG bytes. The images of a shard do not have to fit into memory."""

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


def generate_grids(
    jobs: Sequence[GridJob],
    save: Save,
    load: Callable[[], Generator],
    *,
    batch_size: int,
    log: Log,
    advance: Callable[[int], object] = lambda _count: None,
) -> int:
    """Generate the images of all jobs in batches of equal size; the generator loads only if there are any.

    If the batch does not fit into memory, its size is halved and a line is logged.

    Args:
        save: stores the PNG of a grid id.
        load: loads the generator.
        log: called with a line of text for the log.
        advance: called with the number of images that were generated since the last call.

    Returns:
        The last batch size.

    Raises:
        DataError: if a single image does not fit into memory.
    """
    if not jobs:
        return batch_size
    generator = load()
    if encoded := generator.encode([job.request for job in jobs]):
        log(f"{encoded} prompts encoded, each once; the text encoders are dropped")
    return _generate_batches(jobs, save, generator, batch_size=batch_size, log=log, advance=advance)


def _generate_batches(
    jobs: Sequence[GridJob],
    save: Save,
    generator: Generator,
    *,
    batch_size: int,
    log: Log,
    advance: Callable[[int], object] = lambda _count: None,
) -> int:
    """:func:`generate_grids` with a generator that has already encoded its prompts."""
    by_kind: dict[Hashable, list[GridJob]] = {}
    for job in jobs:
        by_kind.setdefault(generator.kind(job.request), []).append(job)
    for queue in by_kind.values():
        while queue:
            batch = queue[:batch_size]
            try:
                images = generator.generate([job.request for job in batch], batch_size)
            except (RuntimeError, MemoryError) as error:
                batch_size = _halved(batch_size, batch[0], error, log)
                continue
            for job, image in zip(batch, images, strict=True):
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


def _halved(batch_size: int, job: GridJob, error: Exception, log: Log) -> int:
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
    log(f"out of memory with {batch_size} pictures at once; continuing with {batch_size // 2}")
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
            f"grid of prompt {job.record.idx}: the requested size is {job.record.height} x {job.record.width} px, but "
            f"the image has {image.height} x {image.width} px; choose a size that the generator supports"
        )


@dataclass
class GeneratedBatch:
    """The pictures of a batch from a worker, and its log messages."""

    pictures: dict[str, bytes]
    batch_size: int
    messages: list[str]


class GridWorker:
    """A worker. It loads the generator once, encodes every prompt of the run, and then drops the text encoders."""

    def __init__(self, load: Callable[[], Generator], requests: Sequence[Request], batch_size: int, _: int) -> None:
        self._generator, self._batch_size = load(), batch_size
        self._generator.encode(requests)

    def __call__(self, jobs: Sequence[GridJob]) -> GeneratedBatch:
        images, messages = dict[str, bytes](), list[str]()
        # The smaller batch size also applies to the next batches.
        self._batch_size = _generate_batches(
            jobs, images.__setitem__, self._generator, batch_size=self._batch_size, log=messages.append
        )
        return GeneratedBatch(images, self._batch_size, messages)


def generate_grids_on_workers(
    jobs: Sequence[GridJob],
    save: Save,
    load: Callable[[], Generator],
    *,
    batch_size: int,
    gpu: bool,
    threads: int,
    log: Log,
    advance: Callable[[int], object] = lambda _count: None,
) -> int:
    """:func:`paco_core.data.grids.grids.generate_grids` on the workers of the launcher.

    Raises:
        DataError: if a single picture does not fit into the memory of a worker.
    """
    by_size = sorted(jobs, key=lambda job: (job.record.height, job.record.width))
    batches = [by_size[start : start + batch_size] for start in range(0, len(by_size), batch_size)]
    make = partial(GridWorker, load, [job.request for job in by_size], batch_size)
    smallest = batch_size
    for number, batch in launchers.map_pieces(batches, make, gpu=gpu, threads=threads):
        for line in batch.messages:
            log(line)
        for grid_id, png in batch.pictures.items():
            save(grid_id, png)
        smallest = min(smallest, batch.batch_size)
        advance(len(batches[number]))
    return smallest
