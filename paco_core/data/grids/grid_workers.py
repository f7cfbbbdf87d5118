"""Grids painted by workers elsewhere: a picture depends on nothing but its job, so who paints it does not show."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from paco_core.data.grids.grids import Generator, GridJob, Say, Store, paint
from paco_core.data.grids.text_to_image import Request
from paco_core.runtime import launchers

if TYPE_CHECKING:
    from PIL.Image import Image


class PicturesInMemory(dict[str, bytes]):
    """Pictures in memory, until they are sent home."""

    def save(self, grid_id: str, png: bytes) -> None:
        self[grid_id] = png


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
        images, messages = PicturesInMemory(), list[str]()
        load = partial(_Encoded, self._generator)
        # Memory that did not suffice once will not the next time.
        self._batch_size = paint(jobs, images, load, batch_size=self._batch_size, say=messages.append)
        return PaintedBatch(dict(images), self._batch_size, messages)


@dataclass(frozen=True)
class _Encoded:
    """A generator that has its prompts already."""

    generator: Generator

    def encode(self, _requests: Sequence[Request]) -> int:
        return 0

    def kind(self, request: Request) -> Hashable:
        return self.generator.kind(request)

    def paint(self, requests: Sequence[Request], batch_size: int) -> list[Image]:
        return self.generator.paint(requests, batch_size)


def paint_apart(
    jobs: Sequence[GridJob],
    images: Store,
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
    for number, made in launchers.spread(batches, make, gpu=gpu, threads=threads):
        for line in made.messages:
            say(line)
        for grid_id, png in made.pictures.items():
            images.save(grid_id, png)
        smallest = min(smallest, made.batch_size)
        advance(len(batches[number]))
    return smallest
