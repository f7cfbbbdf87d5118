"""Reading of images (by :mod:`paco_core.io.decoding`), and digests of their content."""

from __future__ import annotations

import base64
import math
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from paco_core.io import decoding
from paco_core.io.decoding import MAX_BYTES, SUFFIXES, EncodedPicture, Undecodable, read_head
from paco_core.io.files import DataError, md5_of
from paco_core.io.text import natural_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from PIL.Image import Image

#: Forms of an image: path of a file, data URL, bytes of a file, image of Pillow, or array of pixels.
Picture: TypeAlias = Union[str, "os.PathLike[str]", bytes, "Image", "np.ndarray"]


def picture_of(picture: Picture) -> Image:
    """Convert an image in any form to upright RGB, as :func:`decode_image` does.

    Args:
        picture: path of a file, data URL (``data:image/png;base64,...``), bytes of a file, an image of Pillow, or an
            array (:func:`paco_core.io.decoding.from_array`).

    Raises:
        DataError: if the image is missing, too large or damaged, or is not an image.
    """
    if is_data_url(picture):
        return decode_image(bytes_of_url(str(picture)), "data URL")
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


def is_data_url(picture: object) -> bool:
    """Whether an image is a data URL (``data:image/png;base64,...``)."""
    return isinstance(picture, str) and picture.startswith("data:")


def bytes_of_url(url: str) -> bytes:
    """The encoded image in a data URL.

    Raises:
        DataError: if it is not one in base64.
    """
    head, _, data = url.partition(",")
    try:
        if not head.endswith(";base64"):
            raise ValueError(f"it begins with {head[:40]!r}")
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise DataError(f"data URL: expected data:image/...;base64,... ({error})") from None


def decode_image(data: bytes, name: str, *, visible: bool = False) -> Image:
    """Decode an encoded image to upright RGB. Limits are checked first.

    Args:
        visible: refuse an image whose pixels are all transparent, which would become white.

    Raises:
        DataError: if the image is empty, too large, too narrow, truncated or not an image.
    """
    try:
        encoded = read_head(data)
        if visible and encoded.is_invisible():
            raise Undecodable("all of its pixels are transparent; choose an image that shows something")
        return encoded.decode()
    except Undecodable as error:
        raise DataError(f"{name}: {error}") from None


def read_image(path: Path, name: str | None = None) -> Image:
    """Read an image file, as :func:`decode_image` does.

    Args:
        name: name for errors; None uses the path.

    Raises:
        DataError: if the file is missing, empty, too large, too narrow, truncated or not an image.
    """
    name = name or str(path)
    return decode_image(_bytes(path, name), name)


def read_encoded(path: Path) -> EncodedPicture:
    """Read the header of an image file.

    Raises:
        DataError: if the file is missing, empty, too large, too narrow or not an image.
    """
    try:
        return read_head(_bytes(path, str(path)))
    except Undecodable as error:
        raise DataError(f"{path}: {error}") from None


def is_invisible(picture: str) -> bool:
    """Whether all pixels of an image, a path or a data URL, are transparent.

    Raises:
        DataError: as :func:`decode_image`.
    """
    data, name = (
        (bytes_of_url(picture), "data URL") if is_data_url(picture) else (_bytes(Path(picture), picture), picture)
    )
    try:
        return read_head(data).is_invisible()
    except Undecodable as error:
        raise DataError(f"{name}: {error}") from None


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) of the upright image, from the header of its file.

    Raises:
        DataError: as :func:`read_encoded`.
    """
    encoded = read_encoded(path)
    try:
        return encoded.size
    except Undecodable as error:
        raise DataError(f"{path}: {error}") from None


def content_and_size(path: Path) -> tuple[str, tuple[int, int]]:
    """MD5 of an image file, and (width, height) of the upright image. Cached in this process until the file changes.

    Raises:
        DataError: if the file is missing, empty, too large, too narrow, truncated or not an image.
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
    """Convert an image of Pillow to upright RGB, as :func:`decode_image` does.

    Raises:
        DataError: if its pixels cannot be read, or are outside the range in the rules.
    """
    try:
        return decoding.to_rgb(picture)
    except Undecodable as error:
        raise DataError(f"{getattr(picture, 'filename', None) or 'picture'}: {error}") from None


def limit_pixels(picture: Image, size: tuple[int, int]) -> Image:
    """Resize an image to at most as many pixels as ``size``, in the same proportions."""
    scale = math.sqrt(math.prod(size) / math.prod(picture.size))
    if scale >= 1:
        return picture
    width, height = (max(1, round(side * scale)) for side in picture.size)
    return picture.resize((width, height))


def _bytes(path: Path, name: str) -> bytes:
    if not path.is_file():
        raise DataError(f"{name}: no such picture")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise DataError(f"{name}: {size} bytes, at most {MAX_BYTES} are accepted")
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror})") from None


def list_pictures(folder: Path) -> list[Path]:
    """The images of a folder, sorted by name and number (``2.png`` before ``10.png``).

    Raises:
        DataError: when there is none.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; name a folder of pictures")
    files = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")]
    if not files:
        raise DataError(f"{folder}: holds no picture ({', '.join(SUFFIXES)})")
    return sorted(files, key=lambda path: natural_key(path.name))


def pictures_of(pictures: Picture | Sequence[Picture]) -> list[Image]:
    """Convert one image or a list of images with :func:`picture_of`.

    Raises:
        DataError: as :func:`picture_of`; if the list is empty.
    """
    sources: list[Picture] = list(pictures) if isinstance(pictures, list | tuple) else [pictures]  # type: ignore[list-item]
    if not sources:
        raise DataError("the list of pictures is empty; name one or more")
    return [picture_of(source) for source in sources]


def picture_digest(picture: Image) -> str:
    """MD5 of an image's mode, size and pixels, independent of the encoding."""
    head = f"{picture.mode} {picture.width}x{picture.height} ".encode()
    return md5_of(head + picture.tobytes())


def picture_digests(pictures: Sequence[Image]) -> list[str]:
    """:func:`picture_digest` of each image. A repeated image is read once."""
    digests = {number: picture_digest(picture) for number, picture in {id(p): p for p in pictures}.items()}
    return [digests[id(picture)] for picture in pictures]


def reference_digests(references: Iterable[Sequence[Image]]) -> list[str]:
    """One text per row of images, which identifies them in order. For one image, it is the image's digest."""
    return ["+".join(picture_digests(pictures)) for pictures in references]


def join_in_row(pictures: Sequence[Image], high: int | None = None) -> Image:
    """Images side by side in their proportions, ``high`` pixels high (None: as the first image); RGB.

    A single image of this height is returned unchanged.
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
