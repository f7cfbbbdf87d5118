"""Pictures that arrive as data URLs: limits before decoding, each distinct one decoded once."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections import OrderedDict
from typing import TYPE_CHECKING

from paco_core.serving.protocol import RequestError

if TYPE_CHECKING:
    from PIL import Image

MAX_PIXELS = 16_777_216  # 4096 x 4096
KEPT_BYTES = 256 << 20  # decoded pixels kept for the next request that sends the same picture
FORMATS = ("PNG", "JPEG", "WEBP")


def decode(url: str) -> Image.Image:
    """The RGB picture of a data URL.

    Raises:
        RequestError: 400 for anything but a base64 data URL of a whole PNG, JPEG or WebP picture of at
            most :data:`MAX_PIXELS`. Nothing is fetched from elsewhere, no file is opened.
    """
    from PIL import Image

    head, comma, payload = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise RequestError(
            400, "image_url.url: expected data:image/...;base64,...; nothing else is fetched", "image_url"
        )
    try:
        data = base64.b64decode(payload, validate=True)
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
        if picture.width * picture.height > MAX_PIXELS:
            message = f"image of {picture.width} x {picture.height} pixels, at most {MAX_PIXELS} are accepted"
            raise RequestError(400, message, "image_too_large")
        return picture.convert("RGB")
    except RequestError:
        raise
    except binascii.Error as error:
        raise RequestError(400, f"image_url.url: not base64 ({error})", "image_url") from None
    except Exception as error:  # PIL raises many types for broken files, and its own for bombs
        raise RequestError(400, f"image is not readable ({type(error).__name__}: {error})"[:300], "image") from None


class Pictures:
    """Decoded pictures by the digest of their URL, the least recently used forgotten first."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes, self._bytes = kept_bytes, 0
        self._pictures: OrderedDict[bytes, Image.Image] = OrderedDict()
        self.decoded = 0

    def get(self, url: str) -> Image.Image:
        """The picture of a data URL; see :func:`decode`."""
        key = hashlib.blake2b(url.encode(), digest_size=16).digest()
        if key in self._pictures:
            self._pictures.move_to_end(key)
            return self._pictures[key]
        picture = decode(url)
        self.decoded += 1
        self._pictures[key] = picture
        self._bytes += 3 * picture.width * picture.height
        while self._bytes > self._kept_bytes and len(self._pictures) > 1:
            _, oldest = self._pictures.popitem(last=False)
            self._bytes -= 3 * oldest.width * oldest.height
        return picture
