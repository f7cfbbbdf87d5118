"""Pictures that arrive as data URLs: limits before decoding, each distinct one decoded once."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from paco_core.serving.engines.media import Media
from paco_core.serving.protocol import RequestError

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 16_777_216  # 4096 x 4096
KEPT_BYTES = 256 << 20  # decoded pixels kept for the next request that sends the same picture
FORMATS = ("PNG", "JPEG", "WEBP")


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


def decode(data: bytes) -> Image.Image:
    """The RGB picture in a file's bytes.

    Raises:
        RequestError: 400 for anything but a whole PNG, JPEG or WebP picture of at most :data:`MAX_PIXELS`.
    """
    try:
        return head(data).convert("RGB")
    except RequestError:
        raise
    except Exception as error:  # PIL raises many types for broken files
        raise _unreadable(error) from None


def head(data: bytes) -> Image.Image:
    """A picture of which only the head was read, not the pixels.

    Raises:
        RequestError: as :func:`decode`, but for broken pixels.
    """
    from PIL import Image

    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except Exception as error:  # PIL has its own error for bombs
        raise _unreadable(error) from None
    if picture.width * picture.height > MAX_PIXELS:
        message = f"image of {picture.width} x {picture.height} pixels, at most {MAX_PIXELS} are accepted"
        raise RequestError(400, message, "image_too_large")
    return picture


def _unreadable(error: Exception) -> RequestError:
    return RequestError(400, f"image is not readable ({type(error).__name__}: {error})"[:300], "image")


class Pictures:
    """Decoded pictures by the digest of their data URL, the least recently used forgotten first.

    May be asked from several threads at once. Pictures of other places (:class:`Media`) are read anew each time.
    """

    def __init__(self, media: Media | None = None, kept_bytes: int = KEPT_BYTES) -> None:
        self._media, self._kept_bytes, self._bytes = media or Media(), kept_bytes, 0
        self._pictures: OrderedDict[bytes, Image.Image] = OrderedDict()
        self._lock = threading.Lock()
        self.decoded = self.known = 0

    def get(self, url: str) -> Image.Image:
        """The picture at a data URL, or at an address that is allowed.

        Raises:
            RequestError: 400; see :func:`payload`, :func:`decode` and :meth:`Media.read`.
        """
        if not url.startswith("data:"):
            return self._count(decode(self._media.read(url)))
        key = hashlib.blake2b(url.encode(), digest_size=16).digest()
        with self._lock:
            found = self._pictures.get(key)
            if found is not None:
                self._pictures.move_to_end(key)
                self.known += 1
                return found
        picture = self._count(decode(payload(url)))
        with self._lock:
            if key not in self._pictures:
                self._pictures[key] = picture
                self._bytes += 3 * picture.width * picture.height
            while self._bytes > self._kept_bytes and len(self._pictures) > 1:
                _, oldest = self._pictures.popitem(last=False)
                self._bytes -= 3 * oldest.width * oldest.height
        return picture

    def _count(self, picture: Image.Image) -> Image.Image:
        with self._lock:
            self.decoded += 1
        return picture
