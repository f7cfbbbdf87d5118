"""Decoding of images: from encoded bytes or arrays to upright RGB pixels of 8 bits.

Rules (see docs/reference/formats.md):

* The orientation in EXIF or XMP is applied. Unreadable metadata are ignored.
* Transparent pixels are blended with white.
* Of 16 bits, the high byte is used. Floating-point pixels range from 0 (black) to 1 (white).
* Integers of 0 to 255 in a wider mode are refused, because they could be 8 or 16 bits.
* Only the first frame or page is used.
* ICC profiles are not applied, and CMYK is converted without one.
* Limits of bytes, pixels and sides are checked before decoding. A truncated file is refused.
* An array is (height, width) or (height, width, channels), of 8 bits, or floating-point from 0 to 1.

This module imports nothing of the project, because vLLM's server uses it in a separate environment.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".tif", ".tiff", ".bmp")  # of their files in a folder
MAX_PIXELS = 64_000_000
MAX_BYTES = 4 * MAX_PIXELS  # no PNG is larger than its pixels
MAX_SIDE = 16_384
MAX_RATIO = 200  # longer side / shorter side: the limit of Qwen2.5-VL
#: A PNG may store its orientation after its pixels, in chunks that contain one of these.
_BEHIND = (b"eXIf", b"XML:com.adobe.xmp", b"Raw profile type exif")
_TURNED = (5, 6, 7, 8)  # orientations that swap width and height
_ORIENTATION = 0x0112
_DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N", "F")
_KEY_SCALES = {"L;2": 85, "L;4": 17}


class Undecodable(ValueError):
    """The input is not an image that paco reads. The message is the cause."""


class TooLarge(Undecodable):
    """An image or a file exceeds a limit."""


@dataclass(frozen=True)
class EncodedPicture:
    """An image whose header is within the limits, and whose pixels are not decoded yet."""

    data: bytes
    opened: Image.Image

    @property
    def pixels(self) -> int:
        return self.opened.width * self.opened.height

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the upright image.

        Raises:
            Undecodable: as :meth:`decode`, if the orientation is stored after the pixels.
        """
        if self.opened.format == "TIFF":  # Pillow gives the upright size already
            return self.opened.size
        if self.opened.format == "PNG" and any(mark in self.data for mark in _BEHIND):
            _load(self.opened)
        width, height = self.opened.size
        return (height, width) if _orientation(self.opened) in _TURNED else (width, height)

    @property
    def plain(self) -> bool:
        """Whether this is a PNG of 8-bit RGB that is upright and opaque: one whose bytes need no change."""
        marks = (*_BEHIND, b"tRNS", b"acTL")
        return self.opened.format == "PNG" and _stored(self.opened) == "RGB" and not any(m in self.data for m in marks)

    def validate_complete(self) -> None:
        """Check that a file is not truncated, faster than by decoding. Other damage may stay undetected.

        PNG: checksums of the chunks (1/30 of the time). JPEG: decoding at 1/8 of the sides (less than half of the
        time). WebP: the header of a truncated file cannot be read. Other formats are decoded.

        Raises:
            Undecodable: as :meth:`decode`.
        """
        if self.opened.format == "WEBP":
            return
        try:
            reopened = _open(self.data)
            if reopened.format == "PNG":
                reopened.verify()
            else:
                reopened.draft("RGB", (1, 1))
                reopened.load()
        except Exception:  # Pillow raises many types  # noqa: BLE001
            self.decode()  # decides: a PNG without its last chunk has all its pixels

    def is_invisible(self) -> bool:
        """Whether all pixels are transparent, which :meth:`decode` would return as a white image.

        Raises:
            Undecodable: as :meth:`decode`.
        """
        key = _transparent_key(self.opened)
        if key is None and not self.opened.has_transparency_data:
            return False
        _load(self.opened)
        return bool(_with_alpha(self.opened, key).getchannel("A").getextrema()[1] == 0)

    def decode(self) -> Image.Image:
        """The upright RGB image.

        Raises:
            Undecodable: if the file is truncated or damaged.
        """
        return to_rgb(self.opened)


def read_head(data: bytes, most: int = MAX_PIXELS) -> EncodedPicture:
    """Read the header of an encoded image without decoding its pixels.

    Args:
        most: maximum number of pixels.

    Raises:
        Undecodable: if the file is empty, has another format than :data:`FORMATS`, or is narrower than
            :data:`MAX_RATIO`.
        TooLarge: if the image exceeds a limit.
    """
    from PIL import Image, UnidentifiedImageError

    if not data:
        raise Undecodable("zero bytes, expected a picture")
    if len(data) > MAX_BYTES:
        raise TooLarge(f"{len(data)} bytes, at most {MAX_BYTES} are accepted")
    try:
        opened = _open(data)
    except Image.DecompressionBombError as error:
        raise TooLarge(f"too many pixels ({error}); at most {most} are accepted") from None
    except UnidentifiedImageError:
        raise Undecodable(f"not a readable picture: not one of {', '.join(FORMATS)}, or damaged") from None
    except Exception as error:  # Pillow raises many types for broken files  # noqa: BLE001
        raise _damaged(error) from None
    _check_size(opened.width, opened.height, most)
    return EncodedPicture(data, opened)


def from_array(array: np.ndarray) -> Image.Image:
    """The image in an array: uint8, or floating-point from 0 (black) to 1 (white).

    Args:
        array: (height, width), or (height, width, channels) with 1 channel (gray), 3 (RGB) or 4 (RGB and alpha).

    Raises:
        Undecodable: if the array has another shape or type, or values outside this range.
        TooLarge: if the image exceeds a limit.
    """
    import numpy as np
    from PIL import Image

    shape = array.shape
    if not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))) or 0 in shape:
        raise Undecodable(f"an array of shape {shape}, expected (height, width) or (height, width, 1, 3 or 4 channels)")
    _check_size(shape[1], shape[0], MAX_PIXELS)
    if array.dtype.kind == "f":
        low, high = float(array.min()), float(array.max())
        if not (low >= 0 and high <= 1):  # NaN is neither
            raise Undecodable(f"an array of {array.dtype} from {low:g} to {high:g}, expected 0 to 1; scale it")
        array = np.rint(array * 255.0).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise Undecodable(f"an array of {array.dtype}, expected uint8, or floating-point from 0 to 1")
    return to_rgb(Image.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[2:] == (1,) else array)))


def _open(data: bytes) -> Image.Image:
    from PIL import Image

    return Image.open(io.BytesIO(data), formats=FORMATS)


def _check_size(width: int, height: int, most: int) -> None:
    (short, long), size = sorted((width, height)), f"{width} x {height} pixels"
    if short * long > most:
        raise TooLarge(f"{size} exceed the limit of {most}; scale it down")
    if long > MAX_SIDE:
        raise TooLarge(f"{size}: a side has at most {MAX_SIDE}; scale it down")
    if long > MAX_RATIO * short:
        raise Undecodable(f"{size}: its longer side is more than {MAX_RATIO} times its shorter one")


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of Pillow to upright RGB. An image that already has this form is returned unchanged.

    Raises:
        Undecodable: if its file is truncated or damaged, or its pixels are outside the range in the module's rules.
    """
    from PIL import Image, ImageOps

    if not isinstance(image, Image.Image):
        raise Undecodable(f"expected a picture that Pillow opened or made, not {type(image).__name__}")
    key = _transparent_key(image)
    _load(image)
    if image.mode == "RGB" and not image.info:  # a plain one, as this project writes them
        return image if type(image) is Image.Image else image.copy()
    orientation = _orientation(image)
    if image.mode in _DEEP:
        converted = _from_deep(image, key)
    elif key is not None or image.has_transparency_data:
        converted = _blend_over_white(image, key)
    else:
        converted = _convert(image, "RGB")
    converted.info = {}  # nothing of the file's metadata is passed on: they would be applied, or written, once more
    if orientation != 1:
        converted.getexif()[_ORIENTATION] = orientation
        ImageOps.exif_transpose(converted, in_place=True)
    return converted


def _load(image: Image.Image) -> None:
    try:
        image.load()
    except Exception as error:  # Pillow raises many types  # noqa: BLE001
        raise _damaged(error) from None


def _damaged(error: Exception) -> Undecodable:
    return Undecodable(f"not a readable picture ({type(error).__name__}: {error})"[:300])


def _convert(image: Image.Image, mode: str) -> Image.Image:
    try:
        return image.convert(mode)
    except ValueError:
        raise Undecodable(f"its colour mode {image.mode} is not read; save it as RGB") from None


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; 1 if it is missing or unreadable."""
    from PIL import Image

    try:  # not the method of PngImageFile, which decodes the image if there is no entry
        value = Image.Image.getexif(image).get(_ORIENTATION)
    except Exception:  # metadata are broken in more ways than Pillow has errors for  # noqa: BLE001
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _stored(image: Image.Image) -> Any:
    """Pixel format in the file, in Pillow's notation ("RGB;16B"); None after decoding."""
    tiles = getattr(image, "tile", None)
    return tiles[0].args if tiles else None


def _transparent_key(image: Image.Image) -> Any:
    """The transparent gray or color of a PNG, in the scale of its decoded pixels; None if there is none.

    Pillow returns the color in the depth of the file, but decodes 2, 4 or 16 bits to 8.
    """
    key, raw = image.info.get("transparency"), _stored(image)
    if isinstance(key, tuple) and raw == "RGB;16B":
        return tuple(value >> 8 for value in key)
    return key * _KEY_SCALES[raw] if isinstance(key, int) and raw in _KEY_SCALES else key


def _with_alpha(image: Image.Image, key: Any) -> Image.Image:
    """RGBA pixels, with the transparent gray or color of a PNG (:func:`_transparent_key`)."""
    if key != image.info.get("transparency"):
        image = image.copy()
        image.info["transparency"] = key
    return _convert(image, "RGBA")


def _blend_over_white(image: Image.Image, key: Any) -> Image.Image:
    from PIL import Image

    clear = _with_alpha(image, key)
    white = Image.new("RGB", image.size, "white")
    white.paste(clear, mask=clear.getchannel("A"))
    return white


def _from_deep(image: Image.Image, key: int | None) -> Image.Image:
    """Grey of 16 bits (in 32, too, as Pillow gives some), or floating-point grey."""
    import numpy as np
    from PIL import Image

    values = np.asarray(image)
    low, high, top = float(values.min()), float(values.max()), 1.0 if image.mode == "F" else 65_535.0
    if not (low >= 0 and high <= top):  # NaN is neither
        raise Undecodable(f"its pixels go from {low:g} to {high:g}, expected 0 to {top:g}; scale them, or save 8 bits")
    if image.mode != "F" and 0 < high <= 255 and (image.mode == "I" or image.format is None):
        raise Undecodable(
            f"its pixels go from {low:g} to {high:g} in mode {image.mode}, which may mean 8 bits or 16; convert it to "
            "L, or scale it to 65535"
        )
    grey = np.rint(values * 255.0) if image.mode == "F" else values >> 8
    if key is not None:
        grey = np.where(values == key, 255, grey)
    return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
