"""Requests that arrive together are answered together: one forward pass of the model for many callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Ask = TypeVar("Ask")
Answer = TypeVar("Answer")
LINGER_S = 0.003  # how long a batch that is not full waits for one more request


class Batcher(Generic[Ask, Answer]):
    """Feeds one worker thread with batches of at most ``max_batch`` requests.

    While a batch runs, the next one fills: under load batches are large, a lone request waits for nobody
    longer than :data:`LINGER_S`. A batch that fails is asked again one by one, so that one bad request
    never fails its neighbours.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[Ask]], Sequence[Answer | Exception]],
        max_batch: int,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self._answer, self._max_batch, self._on_batch = answer, max_batch, on_batch
        self._queue: asyncio.Queue[tuple[Ask, asyncio.Future[Answer]]] = asyncio.Queue()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def ask(self, item: Ask) -> Answer:
        """The answer to one request; raises what the model raised for it."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((item, future))
        return await future

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            while True:
                await self._serve(await self._collect())  # nothing here holds a batch while the next one is awaited
        finally:
            self._worker.shutdown(wait=False)

    async def _serve(self, asked: Sequence[tuple[Ask, asyncio.Future[Answer]]]) -> None:
        batch = [(item, future) for item, future in asked if not future.done()]
        if not batch:
            return
        if self._on_batch is not None:
            self._on_batch(len(batch))
        loop = asyncio.get_running_loop()
        results = await loop.run_in_executor(self._worker, self._results, [item for item, _ in batch])
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():  # its caller has gone
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def _collect(self) -> list[tuple[Ask, asyncio.Future[Answer]]]:
        batch = [await self._queue.get()]
        grown = True
        while grown and len(batch) < self._max_batch:
            grown = False
            while not self._queue.empty() and len(batch) < self._max_batch:
                batch.append(self._queue.get_nowait())
                grown = True
            if len(batch) < self._max_batch:
                await asyncio.sleep(LINGER_S)
                grown = not self._queue.empty()
        return batch

    def _results(self, items: Sequence[Ask]) -> list[Answer | Exception]:
        try:
            return list(self._answer(items))
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self._results([item])]
