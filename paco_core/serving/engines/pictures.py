"""Pictures that arrive as data URLs: limits before decoding, each one decoded once, and only so many at a time."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paco_core.io.decoding import EncodedPicture, TooLarge, Undecodable, read_head
from paco_core.serving.http_server import WAIT_S, Budget
from paco_core.serving.protocol import MAX_PIXELS, RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

DECODED_PIXELS = 4 * MAX_PIXELS  # of all decoded pictures: 256 MiB, for Pillow has four bytes for a pixel
#: Pictures so small, in so short a URL, take less time than a thread takes to begin: well under a millisecond.
SMALL_PIXELS, SHORT_URL = 1 << 16, 32 << 10


def payload(url: str) -> bytes:
    """The bytes in a data URL of a picture.

    Raises:
        RequestError: 400 for anything but base64.
    """
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise RequestError(400, "image_url.url: expected data:image/...;base64,...", "image_url")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise RequestError(400, f"image_url.url: not base64 ({error})", "image_url") from None


def decode(encoded: EncodedPicture) -> Image:
    """The RGB picture of which :func:`head` read the head.

    Raises:
        RequestError: 400 where its pixels are broken.
    """
    try:
        return encoded.decode()
    except Undecodable as error:
        raise _refused(error) from None


def head(data: bytes) -> EncodedPicture:
    """The picture in a file's bytes, of which only the head was read, not the pixels.

    Raises:
        RequestError: 400 for what :func:`paco_core.io.decoding.read_head` refuses, and for more than
            :data:`MAX_PIXELS`.
    """
    try:
        return read_head(data, MAX_PIXELS)
    except Undecodable as error:
        raise _refused(error) from None


def _refused(error: Undecodable) -> RequestError:
    return RequestError(400, f"image: {error}"[:400], "image_too_large" if isinstance(error, TooLarge) else "image")


@dataclass(eq=False)
class _Held:
    """A picture that is decoded, or about to be, and how many requests use it."""

    key: bytes
    pixels: int
    picture: asyncio.Future[Image]
    users: int = 0


@dataclass(frozen=True)
class _File:
    key: bytes
    encoded: EncodedPicture


class DecodedPictures:
    """Decoded pictures by the digest of their data URL. All are of one event loop.

    Those that requests use stay; the others are kept for the next request that sends the same picture, until room is
    needed, the least recently used forgotten first. Who needs more room than those in use leave waits for it: what a
    picture becomes in memory is a thousand times its file, or more. Only small ones are decoded on the event loop.

    Args:
        pixels: of all decoded pictures; room for two pictures of :data:`MAX_PIXELS` at least.
        wait_s: how long a request waits for room.
    """

    def __init__(self, pixels: int = DECODED_PIXELS, wait_s: float = WAIT_S) -> None:
        self._room = Budget(pixels, "pixels of decoded pictures", wait_s)
        self._held: dict[bytes, _Held] = {}
        self._idle: OrderedDict[bytes, _Held] = OrderedDict()  # those of them that nobody uses, the longest first
        self.pixels = 0  # of all pictures that are decoded now
        self.decoded = self.known = 0

    @asynccontextmanager
    async def lend(self, urls: Sequence[str]) -> AsyncIterator[list[Image]]:
        """The pictures at data URLs, for as long as the block uses them.

        Raises:
            RequestError: 400, see :func:`payload` and :func:`decode`; 503 when there is no room.
        """
        borrowed = await self._acquire(urls)
        try:
            if decoding := {held.picture for held in borrowed if not held.picture.done()}:
                await asyncio.wait(decoding)  # for each of them, also where one is broken: they are in memory
            yield [held.picture.result() for held in borrowed]
        finally:
            for held in borrowed:
                self._release(held)

    async def _acquire(self, urls: Sequence[str]) -> list[_Held]:
        keys = [hashlib.blake2b(url.encode(), digest_size=16).digest() for url in urls]
        if all(key in self._held for key in keys):
            self.known += len(keys)
            return [self._use(self._held[key]) for key in keys]
        if all(len(url) <= SHORT_URL for url in urls):
            files = list(map(_open, urls, keys))
        else:
            files = await asyncio.to_thread(lambda: list(map(_open, urls, keys)))
        pixels = {file.key: file.encoded.pixels for file in files}

        def missing() -> int:
            return sum(many for key, many in pixels.items() if key not in self._held or not self._held[key].users)

        self._room.release(await self._room.acquire(missing))  # each picture counts by itself as soon as it is used
        return [self._use(self._found(file) or self._decode(file)) for file in files]

    def _found(self, file: _File) -> _Held | None:
        found = self._held.get(file.key)
        self.known += found is not None
        return found

    def _decode(self, file: _File) -> _Held:
        while self._idle and self.pixels + file.encoded.pixels > self._room.limit:
            self._evict(self._idle.popitem(last=False)[1])
        self.pixels += file.encoded.pixels
        held = self._held[file.key] = _Held(file.key, file.encoded.pixels, _decoding(file))
        self.decoded += 1
        return held

    def _use(self, held: _Held) -> _Held:
        if not held.users:
            self._idle.pop(held.key, None)
            self._room.used += held.pixels
        held.users += 1
        return held

    def _release(self, held: _Held) -> None:
        held.users -= 1
        if held.users:
            return
        self._room.release(held.pixels)
        if not held.picture.done() or held.picture.cancelled() or held.picture.exception() is not None:
            self._evict(held)
        else:
            self._idle[held.key] = held

    def _evict(self, held: _Held) -> None:
        del self._held[held.key]
        self.pixels -= held.pixels


def _open(url: str, key: bytes) -> _File:
    return _File(key, head(payload(url)))


def _decoding(file: _File) -> asyncio.Future[Image]:
    loop = asyncio.get_running_loop()
    if file.encoded.pixels > SMALL_PIXELS or len(file.encoded.data) > SHORT_URL:
        return loop.create_task(asyncio.to_thread(decode, file.encoded))
    decoded: asyncio.Future[Image] = loop.create_future()
    try:
        decoded.set_result(decode(file.encoded))
    except RequestError as error:
        decoded.set_exception(error)
    return decoded
