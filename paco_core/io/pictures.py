"""Pictures: read, by the rules of :mod:`paco_core.io.decoding`, and known by their content."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from paco_core.io import decoding
from paco_core.io.decoding import MAX_BYTES, EncodedPicture, Undecodable, read_head
from paco_core.io.files import DataError, md5_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from PIL.Image import Image

#: What a caller may give as a picture: a file, its encoded bytes, a picture of Pillow, or an array of pixels.
Picture: TypeAlias = Union[str, "os.PathLike[str]", bytes, "Image", "np.ndarray"]


def picture_of(picture: Picture) -> Image:
    """A picture in any of its forms, as :func:`decode_image` would have read it.

    Args:
        picture: path of a file, the bytes of a file, an image of Pillow, or an array (see
            :func:`paco_core.io.decoding.from_array`).

    Raises:
        DataError: when the picture is missing, too large, damaged or not an image.
    """
    if isinstance(picture, str | os.PathLike):
        return read_image(Path(picture))
    if isinstance(picture, bytes):
        return decode_image(picture, "picture")
    if type(picture).__module__ == "numpy":
        try:
            return decoding.from_array(picture)  # type: ignore[arg-type]
        except Undecodable as error:
            raise DataError(f"picture: {error}") from None
    return normalize_image(picture)  # type: ignore[arg-type]


def decode_image(data: bytes, name: str) -> Image:
    """Decode an encoded picture to upright RGB, with its limits checked first.

    Raises:
        DataError: naming the picture when it is empty, too large, too narrow, truncated or no picture.
    """
    try:
        return read_head(data).decode()
    except Undecodable as error:
        raise DataError(f"{name}: {error}") from None


def read_image(path: Path, name: str | None = None) -> Image:
    """A picture of its own file, as :func:`decode_image` gives it.

    Args:
        name: in errors; the path when None.

    Raises:
        DataError: naming the file when it is missing, empty, too large, too narrow, truncated or no picture.
    """
    name = name or str(path)
    return decode_image(_bytes(path, name), name)


def read_encoded(path: Path) -> EncodedPicture:
    """The head of a picture's file.

    Raises:
        DataError: naming the file when it is missing, empty, too large, too narrow or no picture.
    """
    try:
        return read_head(_bytes(path, str(path)))
    except Undecodable as error:
        raise DataError(f"{path}: {error}") from None


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) of a picture as it is seen, from its head.

    Raises:
        DataError: as :func:`read_encoded`.
    """
    encoded = read_encoded(path)
    try:
        return encoded.size
    except Undecodable as error:
        raise DataError(f"{path}: {error}") from None


def content_and_size(path: Path) -> tuple[str, tuple[int, int]]:
    """MD5 of a picture's file, and its (width, height) as it is seen.

    Remembered in this process for as long as nobody touches the file.

    Raises:
        DataError: naming the file when it is missing, empty, too large, too narrow, truncated or no picture.
    """
    try:
        state = path.stat()
    except OSError:
        raise DataError(f"{path}: no such picture") from None
    return _content_and_size(path, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)


@lru_cache(maxsize=1 << 16)
def _content_and_size(path: Path, *_state: int) -> tuple[str, tuple[int, int]]:
    encoded = read_encoded(path)
    try:
        encoded.validate_complete()
        return md5_of(encoded.data), encoded.size
    except Undecodable as error:
        raise DataError(f"{path}: {error}") from None


def normalize_image(picture: Image) -> Image:
    """A picture that a caller opened with Pillow or made, as :func:`decode_image` would have read it.

    Raises:
        DataError: when its pixels cannot be read, or are out of the range that the rules state.
    """
    try:
        return decoding.to_rgb(picture)
    except Undecodable as error:
        raise DataError(f"{getattr(picture, 'filename', None) or 'picture'}: {error}") from None


def _bytes(path: Path, name: str) -> bytes:
    if not path.is_file():
        raise DataError(f"{name}: no such picture")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise DataError(f"{name}: {size} bytes, at most {MAX_BYTES} are accepted")
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror})") from None


def pictures_of(pictures: Picture | Sequence[Picture]) -> list[Image]:
    """:func:`picture_of` one picture, or each of a list of them.

    Raises:
        DataError: as :func:`picture_of`; when the list is empty.
    """
    sources: list[Picture] = list(pictures) if isinstance(pictures, list | tuple) else [pictures]  # type: ignore[list-item]
    if not sources:
        raise DataError("the list of pictures is empty; name one or more")
    return [picture_of(source) for source in sources]


def picture_digest(picture: Image) -> str:
    """MD5 of a picture's mode, size and pixels, however it is encoded."""
    head = f"{picture.mode} {picture.width}x{picture.height} ".encode()
    return md5_of(head + picture.tobytes())


def picture_digests(pictures: Sequence[Image]) -> list[str]:
    """:func:`picture_digest` of each; one that stands there several times is read once."""
    digests = {number: picture_digest(picture) for number, picture in {id(p): p for p in pictures}.items()}
    return [digests[id(picture)] for picture in pictures]


def reference_digests(references: Iterable[Sequence[Image]]) -> list[str]:
    """One text a row of pictures, which says all of them in their order: the digest of a single one."""
    return ["+".join(picture_digests(pictures)) for pictures in references]


def in_a_row(pictures: Sequence[Image], high: int | None = None) -> Image:
    """Pictures beside each other, in their own proportions, ``high`` pixels high (None: as the first); RGB.

    A single one of that height is returned as it is.
    """
    high = high or pictures[0].height
    if len(pictures) == 1 and pictures[0].height == high:
        return pictures[0]
    from PIL import Image as pil

    resized = [image.resize((max(1, round(image.width * high / image.height)), high)) for image in pictures]
    page, left = pil.new("RGB", (sum(image.width for image in resized), high), "white"), 0
    for image in resized:
        page.paste(image, (left, 0))
        left += image.width
    return page
