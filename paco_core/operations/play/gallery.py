"""The pictures of the page: those that a person added, and those that were painted."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from threading import Lock
from typing import TYPE_CHECKING

from paco_core.io.files import DataError
from paco_core.io.image_metadata import encode_image
from paco_core.io.pictures import decode_image
from paco_core.sampling.origin import image_metadata

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.sampling.origin import ImageOrigin

MOST_BYTES = 512 * 2**20  # of all pictures together, as PNG


class NoLongerStored(DataError):
    """There is no such picture, or there is no longer."""


class Gallery:
    """Pictures in memory, as PNG, by a name made of their content; the ones unused for longest are forgotten first.

    Nothing of it is ever written to a disk, and no name leads to a file.

    Args:
        most: bytes that they may take; the newest one stays whatever it takes.
    """

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._used_bytes = most, 0
        self._pictures: OrderedDict[str, bytes] = OrderedDict()
        self._lock, self._decoding = Lock(), Lock()

    def upload(self, data: bytes, name: str) -> tuple[str, Image]:
        """Keep an encoded picture that comes from outside; its name here, and the picture.

        It is decoded, with its size checked first, and encoded anew: what is shown is what the models see, and nothing
        of what else the bytes held is passed on. One at a time, as a large one takes a few hundred megabytes.

        Raises:
            DataError: when it is no picture, damaged or too large, or all of its pixels are transparent.
        """
        with self._decoding:
            image = decode_image(data, name, visible=True)
        return self.add(image), image

    def add(self, image: Image, origin: ImageOrigin | None = None) -> str:
        """Keep a picture, with its origin in its metadata; its name."""
        png = encode_image(image, "PNG", image_metadata([origin] if origin else []))
        name = hashlib.sha256(png).hexdigest()[:20]
        with self._lock:
            if name not in self._pictures:
                self._pictures[name] = png
                self._used_bytes += len(png)
            self._pictures.move_to_end(name)
            while self._used_bytes > self._most and len(self._pictures) > 1:
                _, oldest = self._pictures.popitem(last=False)
                self._used_bytes -= len(oldest)
        return name

    def png(self, name: str) -> bytes:
        """
        Raises:
            NoLongerStored: when it is not kept.
        """
        with self._lock:
            if name not in self._pictures:
                raise NoLongerStored("this image is no longer stored; add or generate it again")
            self._pictures.move_to_end(name)
            return self._pictures[name]

    def image(self, name: str) -> Image:
        """
        Raises:
            NoLongerStored: when it is not kept.
        """
        return decode_image(self.png(name), name)
