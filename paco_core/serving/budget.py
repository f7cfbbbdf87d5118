"""A bounded amount that requests share: who comes when it is used up waits, and is refused when that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from paco_core.serving.protocol import RequestError

WAIT_S = 30.0  # that a request waits for its share
RETRY_AFTER_S = 2


class Budget:
    """First come, first served: a large request is not passed by small ones for ever.

    Args:
        limit: how much there is, and the most that one share may be.
        what: of what, for the refusal ("bytes of requests").
    """

    def __init__(self, limit: int, what: str, wait_s: float = WAIT_S) -> None:
        self.limit, self.used, self._what, self._wait_s = limit, 0, what, wait_s
        self._turn, self._freed = asyncio.Lock(), asyncio.Event()

    async def take(self, amount: Callable[[], int]) -> int:
        """Wait for a share, which :meth:`give` returns; how much it is.

        Args:
            amount: asked again whenever something has become free, for it may depend on what others did meanwhile.

        Raises:
            RequestError: 503 with ``Retry-After``, when it is not there within ``wait_s``.
        """
        if not self._turn.locked() and self.used + (share := amount()) <= self.limit:  # nobody waits: no timer
            self.used += share
            return share
        try:
            async with asyncio.timeout(self._wait_s), self._turn:
                while self.used + (share := amount()) > self.limit:
                    self._freed.clear()
                    await self._freed.wait()
                self.used += share
                return share
        except TimeoutError:
            message = f"the server is busy: {self.used} of {self.limit} {self._what} are in use; try again"
            raise RequestError(503, message, "busy", retry_after_s=RETRY_AFTER_S) from None

    def give(self, share: int) -> None:
        """Return what :meth:`take` gave."""
        self.used -= share
        self._freed.set()

    @asynccontextmanager
    async def share(self, amount: int) -> AsyncIterator[None]:
        """Hold a share for as long as the block runs.

        Raises:
            RequestError: see :meth:`take`.
        """
        share = await self.take(lambda: amount)
        try:
            yield
        finally:
            self.give(share)
