"""The one place where encoded pictures become pixels: always RGB, 8 bits, upright.

The rules, which docs/reference/formats.md states for people:

* the orientation in EXIF or XMP is applied; metadata that cannot be read count as none,
* what is transparent is seen over white,
* of 16 bits the high byte is kept, in grey as in colour; floating-point pixels are taken from 0 (black) to 1 (white),
* whole numbers of 0 to 255 in a wider mode are refused: Pillow's ``convert`` means 8 bits, and they may be 16,
* of animations and of several pages the first one is taken,
* colours are taken as they are stored: ICC profiles are not applied, and CMYK is converted without one,
* limits of bytes, pixels and sides hold before anything is decoded; a truncated file is refused,
* an array is (height, width) or (height, width, channels), of 8 bits, or floating-point from 0 to 1.

Nothing of the project is imported here: vLLM's server, in an environment of its own, reads pictures by this file, too.
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
MAX_RATIO = 200  # of the longer side to the shorter one: Qwen2.5-VL takes no narrower picture
#: A PNG may have its orientation behind its pixels, in chunks that hold one of these.
_BEHIND = (b"eXIf", b"XML:com.adobe.xmp", b"Raw profile type exif")
_TURNED = (5, 6, 7, 8)  # orientations that swap width and height
_ORIENTATION = 0x0112
_DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N", "F")
_KEY_SCALES = {"L;2": 85, "L;4": 17}


class Undecodable(ValueError):
    """What was given is no picture that is taken; the text is the cause."""


class TooLarge(Undecodable):
    """A picture, or a file, beyond a limit."""


@dataclass(frozen=True)
class EncodedPicture:
    """A picture whose head was read and found within the limits, and whose pixels were not decoded yet."""

    data: bytes
    opened: Image.Image

    @property
    def pixels(self) -> int:
        return self.opened.width * self.opened.height

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the upright picture.

        Raises:
            Undecodable: as :meth:`decode`, where the orientation stands behind the pixels.
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
        """Find a file that ends too early, at less than decoding costs; other damage may stay unseen.

        A PNG's chunks are checked by their sums (a thirtieth of the time), a JPEG is decoded at an eighth of its sides
        (less than half), and the head of a truncated WebP cannot be read. Other formats are decoded.

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

    def decode(self) -> Image.Image:
        """The picture.

        Raises:
            Undecodable: when it is truncated or damaged.
        """
        return to_rgb(self.opened)


def read_head(data: bytes, most: int = MAX_PIXELS) -> EncodedPicture:
    """The picture in a file's bytes, before its pixels are decoded.

    Args:
        most: pixels that it may have.

    Raises:
        Undecodable: when it is empty, not of one of :data:`FORMATS`, or narrower than :data:`MAX_RATIO` allows.
        TooLarge: when it exceeds a limit.
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
    """The picture in an array: uint8, or floating-point from 0 (black) to 1 (white).

    Args:
        array: (height, width), or (height, width, channels) with 1 channel (grey), 3 (RGB) or 4 (RGB and alpha).

    Raises:
        Undecodable: when it has another shape or type, or values outside of that range.
        TooLarge: when it exceeds a limit.
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
    """A picture that Pillow opened or made, as its pixels are meant to be seen; itself where nothing is to be done.

    Raises:
        Undecodable: when its file is truncated or damaged, or its pixels are out of the range that is stated above.
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
        converted = _over_white(image, key)
    else:
        converted = _converted(image, "RGB")
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


def _converted(image: Image.Image, mode: str) -> Image.Image:
    try:
        return image.convert(mode)
    except ValueError:
        raise Undecodable(f"its colour mode {image.mode} is not read; save it as RGB") from None


def _orientation(image: Image.Image) -> int:
    """1 to 8 as in EXIF; 1 where none is given, or none that can be read."""
    from PIL import Image

    try:  # not a PNG's own method, which decodes the picture where it finds nothing
        value = Image.Image.getexif(image).get(_ORIENTATION)
    except Exception:  # metadata are broken in more ways than Pillow has errors for  # noqa: BLE001
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _stored(image: Image.Image) -> Any:
    """How the pixels lie in the file, in Pillow's words ("RGB;16B"); None once they are decoded."""
    tiles = getattr(image, "tile", None)
    return tiles[0].args if tiles else None


def _transparent_key(image: Image.Image) -> Any:
    """The grey or colour that a PNG calls transparent, in the scale of its decoded pixels; None where there is none.

    Pillow leaves it in the file's depth where it decodes 2, 4 or 16 bits to 8.
    """
    key, raw = image.info.get("transparency"), _stored(image)
    if isinstance(key, tuple) and raw == "RGB;16B":
        return tuple(value >> 8 for value in key)
    return key * _KEY_SCALES[raw] if isinstance(key, int) and raw in _KEY_SCALES else key


def _over_white(image: Image.Image, key: Any) -> Image.Image:
    from PIL import Image

    if key != image.info.get("transparency"):
        image = image.copy()
        image.info["transparency"] = key
    clear = _converted(image, "RGBA")
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
