"""One drawing in the files that people have, each with the picture that a person sees in it."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image, ImageCms

RED, BLUE = (200, 40, 40), (40, 40, 200)
ORIENTATION = 0x0112


def encoded(image: Image.Image, kind: str = "PNG", **save_options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **save_options)
    return stream.getvalue()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(depth: int, colour: int, rows: list[bytes], width: int, before: bytes = b"", behind: bytes = b"") -> bytes:
    """A PNG by its parts: bit depth, colour type (0 grey, 2 RGB), rows, chunks before and behind the pixels."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, 0))
    pixels = _chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + head + before + pixels + behind + _chunk(b"IEND", b"")


def keyed(*values: int) -> bytes:
    """The chunk that calls a grey or a colour transparent."""
    return _chunk(b"tRNS", struct.pack(f">{len(values)}H", *values))


def drawing() -> Image.Image:
    """Red on the left, blue on the right, white on top: what is turned, cut or seen through shows."""
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:, :32], pixels[:, 32:], pixels[:8] = RED, BLUE, 255
    return Image.fromarray(pixels)


def left_clear(image: Image.Image) -> Image.Image:
    """The left half fully transparent, its colours still there."""
    clear = image.copy()
    clear.putalpha(255)
    clear.paste((*RED, 0)[: len(clear.getbands())] if clear.mode == "RGBA" else (90, 0), (0, 0, 32, 48))
    return clear


def left_white(image: Image.Image) -> Image.Image:
    """What is seen of :func:`left_clear`."""
    white = image.convert("RGB")
    white.paste("white", (0, 0, 32, 48))
    return white


def exif(orientation: int) -> Image.Exif:
    metadata = Image.Exif()
    metadata[ORIENTATION] = orientation
    return metadata


def rows_of(image: Image.Image, scale: int = 1) -> list[bytes]:
    pixels = np.asarray(image).astype(np.uint16) * scale
    return [row.astype(np.uint8 if scale == 1 else ">u2").tobytes() for row in pixels]


def ramp(dtype: str) -> Image.Image:
    """Grey in 16 bits: every fifth of the values of 8 bits, side by side, times 257."""
    return Image.fromarray(np.tile(np.arange(0, 256, 5) * 257, (30, 1)).astype(dtype))


RAMP = Image.fromarray(np.tile(np.arange(0, 256, 5), (30, 1)).astype(np.uint8)).convert("RGB")


def row_of_grey(*values: int) -> Image.Image:
    return Image.fromarray(np.array([values], np.uint8)).convert("RGB")


def rotated() -> dict[str, tuple[bytes, Image.Image]]:
    upright = drawing()
    lying = upright.transpose(Image.Transpose.ROTATE_90)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    behind = _chunk(b"eXIf", exif(6).tobytes().removeprefix(b"Exif\0\0"))
    mirrored = upright.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return {
        "orientation 6, PNG": (encoded(lying, exif=exif(6)), upright),
        "orientation 2, PNG": (encoded(mirrored, exif=exif(2)), upright),
        "orientation 9, which is none, PNG": (encoded(upright, exif=exif(9)), upright),
        "orientation 6, WEBP": (encoded(lying, "WEBP", lossless=True, exif=exif(6)), upright),
        "orientation 6, TIFF": (encoded(lying, "TIFF", exif=exif(6)), upright),
        "orientation 6 behind the pixels, PNG": (png(8, 2, rows_of(lying), 48, behind=behind), upright),
        "broken EXIF, PNG": (encoded(upright, exif=b"Exif\0\0MM\0\x2a\xff\xff"), upright),
        "ICC profile, PNG": (encoded(upright, icc_profile=profile), upright),
    }


def transparent() -> dict[str, tuple[bytes, Image.Image]]:
    upright, palette = drawing(), drawing().quantize(4)
    expected, hidden = left_white(upright), palette.getpixel((2, 40))
    deep = png(16, 2, rows_of(upright, 257), 64, keyed(*(value * 257 for value in RED)))
    return {
        "RGBA, PNG": (encoded(left_clear(upright)), expected),
        "RGBA, WEBP": (encoded(left_clear(upright), "WEBP", lossless=True, exact=True), expected),
        "RGBA, TIFF": (encoded(left_clear(upright), "TIFF"), expected),
        "LA, PNG": (encoded(left_clear(upright.convert("L"))), left_white(upright.convert("L"))),
        "P with tRNS, PNG": (encoded(palette, transparency=hidden), expected),
        "P with tRNS, GIF": (encoded(palette, "GIF", transparency=hidden), expected),
        "RGB with tRNS, PNG": (png(8, 2, rows_of(upright), 64, keyed(*RED)), expected),
        "16-bit RGB with tRNS, PNG": (deep, expected),
        "L with tRNS, PNG": (png(8, 0, [bytes([1, 3, 5])], 3, keyed(3)), row_of_grey(1, 255, 5)),
        "4-bit L with tRNS, PNG": (png(4, 0, [b"\x5a\x0f"], 4, keyed(5)), row_of_grey(255, 170, 0, 255)),
        "1-bit with tRNS, PNG": (png(1, 0, [b"\x50"], 4, keyed(0)), row_of_grey(255, 255, 255, 255)),
    }


def deep() -> dict[str, tuple[bytes, Image.Image]]:
    floating = Image.fromarray(np.asarray(ramp("float32")) / np.float32(65_535))
    two_colours = png(16, 0, [struct.pack(">HH", 25_700, 300)], 2, keyed(300))
    return {
        "16-bit grey, PNG": (encoded(ramp("uint16")), RAMP),
        "16-bit grey, TIFF": (encoded(ramp("uint16"), "TIFF"), RAMP),
        "16-bit grey, big-endian TIFF": (encoded(ramp(">u2"), "TIFF"), RAMP),
        "16-bit grey in 32 bits, TIFF": (encoded(ramp("int32"), "TIFF"), RAMP),
        "16-bit grey with tRNS, PNG": (two_colours, row_of_grey(100, 255)),
        "floating-point grey, TIFF": (encoded(floating, "TIFF"), RAMP),
    }


def common_formats() -> dict[str, tuple[bytes, Image.Image]]:
    upright, palette = drawing(), drawing().quantize(4)
    save_options: dict[str, Any] = {"save_all": True, "append_images": [upright.rotate(180)]}
    return {
        "8-bit RGB, PNG": (encoded(upright), upright),
        "1-bit, PNG": (encoded(upright.convert("1")), upright.convert("1").convert("RGB")),
        "L, PNG": (encoded(upright.convert("L")), upright.convert("L").convert("RGB")),
        "CMYK, TIFF": (encoded(upright.convert("CMYK"), "TIFF"), upright),
        "animated GIF": (encoded(palette, "GIF", save_all=True, append_images=[palette.rotate(180)]), upright),
        "animated WEBP": (encoded(upright, "WEBP", lossless=True, **save_options), upright),
        "animated PNG": (encoded(upright, **save_options), upright),
        "two pages, TIFF": (encoded(upright, "TIFF", **save_options), upright),
        "BMP": (encoded(upright, "BMP"), upright),
    }


def carriers() -> dict[str, tuple[bytes, Image.Image]]:
    """Name -> (file, what is seen in it), all without loss."""
    return rotated() | transparent() | deep() | common_formats()
