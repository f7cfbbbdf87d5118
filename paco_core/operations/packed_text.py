"""Texts that are packed in bytes: compressed chunks of PNG, gzip and zlib, profiles of ImageMagick, data URLs."""

from __future__ import annotations

import binascii
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain

from paco_core.io.files import DataError

LONGEST = 16 << 20  # bytes of a text, unpacked
DEPTH = 3  # of a text in a text
PNG, GZIP = b"\x89PNG\r\n\x1a\n", b"\x1f\x8b\x08"
_STEP = 4096  # bytes that are inflated at a time
#: ImageMagick writes a profile as its name, its length, and its bytes in hexadecimal digits.
_PROFILE = re.compile(rb"\n[\w ]{1,40}\n *\d{1,9}\n([0-9a-fA-F\n]{2,})")
_DATA_URL = re.compile(rb";base64,([A-Za-z0-9+/]{8,})")


def packed_texts(data: bytes, depth: int = DEPTH) -> Iterator[bytes]:
    """Each text that is packed in some bytes, and what is packed in that.

    Not unpacked: the pixels of pictures, and other compressions than zlib's.

    Raises:
        DataError: for a text of more than :data:`LONGEST` bytes.
    """
    for text in chain(_chunks(data), _streams(data), _profiles(data), _data_urls(data)):
        yield b"\n" + text
        if depth > 1:
            yield from packed_texts(text, depth - 1)


def _chunks(data: bytes) -> Iterator[bytes]:
    """The compressed texts, profiles and private chunks of a PNG; nothing for another picture."""
    at = len(PNG)
    while data.startswith(PNG) and at + 8 <= len(data):
        size, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + size]
        if kind not in (b"IDAT", b"fdAT"):
            _keyword, _, chunk_text = body.partition(b"\0")
            parts = chunk_text[2:].split(b"\0", 2)  # of an iTXt: language, translated keyword, text
            yield from (text for part in (body, chunk_text[1:], parts[-1]) if (text := _inflated(part, zlib.MAX_WBITS)))
        at += 12 + size


def _streams(data: bytes) -> Iterator[bytes]:
    """What is compressed: all bytes, or from a head of gzip on."""
    if text := _inflated(data, zlib.MAX_WBITS):
        yield text
    at = data.find(GZIP)
    while at >= 0:
        if text := _inflated(data[at:], zlib.MAX_WBITS | 16):
            yield text
        at = data.find(GZIP, at + 1)


def _profiles(data: bytes) -> Iterator[bytes]:
    for match in _PROFILE.finditer(data):
        digits = match[1].replace(b"\n", b"")
        yield bytes.fromhex(digits[: len(digits) // 2 * 2].decode())


def _data_urls(data: bytes) -> Iterator[bytes]:
    for match in _DATA_URL.finditer(data):
        yield binascii.a2b_base64(match[1][: len(match[1]) // 4 * 4])


def _inflated(data: bytes, window: int) -> bytes:
    """The start of a compressed stream, up to where it is damaged; empty for other bytes."""
    stream, parts, size = zlib.decompressobj(window), list[bytes](), 0
    for at in range(0, len(data), _STEP):
        before, step = stream.copy(), data[at : at + _STEP]
        try:
            parts.append(stream.decompress(step))
        except zlib.error:  # what came before the fault is not returned; readers may show it
            with suppress(zlib.error):
                parts += (before.decompress(step[n : n + 1]) for n in range(len(step)))
            break
        size += len(parts[-1])
        if size > LONGEST:
            raise DataError(f"a text of more than {LONGEST:,} bytes is packed in it; remove it")
        if stream.eof:
            break
    return b"".join(parts)
