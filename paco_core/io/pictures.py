"""Pictures by their content."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image


def picture_digest(picture: Image) -> str:
    """MD5 of a picture's mode, size and pixels, however it is encoded."""
    head = f"{picture.mode} {picture.width}x{picture.height} ".encode()
    return hashlib.md5(head + picture.tobytes(), usedforsecurity=False).hexdigest()


def picture_digests(pictures: Sequence[Image]) -> list[str]:
    """:func:`picture_digest` of each; one that stands there several times is read once."""
    digests = {number: picture_digest(picture) for number, picture in {id(p): p for p in pictures}.items()}
    return [digests[id(picture)] for picture in pictures]
