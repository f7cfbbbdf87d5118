"""Images in data URLs: size limits before decoding, and a bounded cache of decoded images."""

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
#: Smaller images with shorter URLs are decoded faster than a thread starts: well under a millisecond.
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
    """Decode the image of :func:`head` to RGB.

    Raises:
        RequestError: 400 when its pixels are damaged.
    """
    try:
        return encoded.decode()
    except Undecodable as error:
        raise _request_error(error) from None


def head(data: bytes) -> EncodedPicture:
    """Read the header of an image file, not its pixels.

    Raises:
        RequestError: 400 when :func:`paco_core.io.decoding.read_head` fails, or the image has more than
            :data:`MAX_PIXELS`.
    """
    try:
        return read_head(data, MAX_PIXELS)
    except Undecodable as error:
        raise _request_error(error) from None


def _request_error(error: Undecodable) -> RequestError:
    return RequestError(400, f"image: {error}"[:400], "image_too_large" if isinstance(error, TooLarge) else "image")


@dataclass(eq=False)
class _CacheEntry:
    """An image that is decoded or being decoded, and the number of requests that use it."""

    key: bytes
    pixels: int
    picture: asyncio.Future[Image]
    users: int = 0


@dataclass(frozen=True)
class _File:
    key: bytes
    encoded: EncodedPicture


class DecodedPictures:
    """LRU cache of decoded images by the digest of their data URL, for one event loop.

    Images that a request uses are never evicted. If they leave too little memory, a request waits: a decoded image may
    be a thousand times larger than its file. Only small images are decoded on the event loop.

    Args:
        pixels: limit of all decoded images, at least two images of :data:`MAX_PIXELS`.
        wait_s: how long a request waits for memory.
    """

    def __init__(self, pixels: int = DECODED_PIXELS, wait_s: float = WAIT_S) -> None:
        self._budget = Budget(pixels, "pixels of decoded pictures", wait_s)
        self._entries: dict[bytes, _CacheEntry] = {}
        self._idle: OrderedDict[bytes, _CacheEntry] = OrderedDict()  # unused entries, the least recently used first
        self.pixels = 0  # of all decoded images
        self.num_decoded = self.num_hits = 0

    @asynccontextmanager
    async def lend(self, urls: Sequence[str]) -> AsyncIterator[list[Image]]:
        """The images of data URLs, which stay in memory during the block.

        Raises:
            RequestError: 400, see :func:`payload` and :func:`decode`; 503 when the memory limit is reached.
        """
        borrowed = await self._acquire(urls)
        try:
            if decoding := {entry.picture for entry in borrowed if not entry.picture.done()}:
                await asyncio.wait(decoding)  # for all of them, even if one is damaged: they are in memory
            yield [entry.picture.result() for entry in borrowed]
        finally:
            for entry in borrowed:
                self._release(entry)

    async def _acquire(self, urls: Sequence[str]) -> list[_CacheEntry]:
        keys = [hashlib.blake2b(url.encode(), digest_size=16).digest() for url in urls]
        if all(key in self._entries for key in keys):
            self.num_hits += len(keys)
            return [self._use(self._entries[key]) for key in keys]
        if all(len(url) <= SHORT_URL for url in urls):
            files = list(map(_open, urls, keys))
        else:
            files = await asyncio.to_thread(lambda: list(map(_open, urls, keys)))
        pixels = {file.key: file.encoded.pixels for file in files}

        def missing() -> int:
            return sum(
                num_pixels
                for key, num_pixels in pixels.items()
                if key not in self._entries or not self._entries[key].users
            )

        self._budget.release(await self._budget.acquire(missing))  # each image counts separately as soon as it is used
        return [self._use(self._lookup(file) or self._decode(file)) for file in files]

    def _lookup(self, file: _File) -> _CacheEntry | None:
        entry = self._entries.get(file.key)
        self.num_hits += entry is not None
        return entry

    def _decode(self, file: _File) -> _CacheEntry:
        while self._idle and self.pixels + file.encoded.pixels > self._budget.limit:
            self._evict(self._idle.popitem(last=False)[1])
        self.pixels += file.encoded.pixels
        entry = self._entries[file.key] = _CacheEntry(file.key, file.encoded.pixels, _decoding(file))
        self.num_decoded += 1
        return entry

    def _use(self, entry: _CacheEntry) -> _CacheEntry:
        if not entry.users:
            self._idle.pop(entry.key, None)
            self._budget.used += entry.pixels
        entry.users += 1
        return entry

    def _release(self, entry: _CacheEntry) -> None:
        entry.users -= 1
        if entry.users:
            return
        self._budget.release(entry.pixels)
        if not entry.picture.done() or entry.picture.cancelled() or entry.picture.exception() is not None:
            self._evict(entry)
        else:
            self._idle[entry.key] = entry

    def _evict(self, entry: _CacheEntry) -> None:
        del self._entries[entry.key]
        self.pixels -= entry.pixels


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
