"""Metadata of image files: a text that image tools show, and a JSON record that paco reads.

PNG files have both as iTXt chunks, ``parameters`` and ``paco``. JPEG and WebP files have them in EXIF: the text as
``UserComment`` in UTF-16, the record as ``MakerNote``. The places of the text are those of AUTOMATIC1111's web UI
(github.com/AUTOMATIC1111/stable-diffusion-webui, modules/images.py), which other tools read.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from paco_core.io.pictures import read_encoded

if TYPE_CHECKING:
    from PIL.Image import Image

PARAMETERS, RECORD = "parameters", "paco"  # keys of PNG chunks
_EXIF_IFD, _MAKER_NOTE, _USER_COMMENT = 0x8769, 0x927C, 0x9286
_MAX_EXIF = 65_533  # bytes of a JPEG segment
_MARK, _UNICODE = b"paco\0", b"UNICODE\0"  # start of a value in EXIF
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
ENCODING: dict[str, dict[str, Any]] = {"PNG": {"compress_level": 6}, "JPEG": {"quality": 95}, "WEBP": {"quality": 95}}


@dataclass(frozen=True)
class ImageMetadata:
    """Metadata of one image file.

    Attributes:
        parameters: text for image tools.
        record: JSON values.
    """

    parameters: str
    record: Mapping[str, Any]


def encode_image(image: Image, form: str, metadata: ImageMetadata | None) -> bytes:
    """An encoded image. Equal pixels and metadata give equal bytes. The metadata do not affect the pixels.

    Args:
        form: ``PNG``, ``JPEG`` or ``WEBP``.

    Raises:
        DataError: if the metadata are too long for JPEG or WebP.
    """
    buffer = io.BytesIO()
    options = {} if metadata is None else _png_text(metadata) if form == "PNG" else _exif(metadata)
    image.save(buffer, format=form, **ENCODING[form], **options)
    return buffer.getvalue()


def save_image(image: Image, file: Path, metadata: ImageMetadata | None) -> None:
    """Save an image as PNG, JPEG or WebP, by the suffix of ``file``.

    Raises:
        DataError: if the suffix is of another format, or the metadata are too long for JPEG or WebP.
    """
    if file.suffix.lower() not in FORMATS:
        raise DataError(f"{file}: expected a name that ends in {', '.join(FORMATS)}")
    data = encode_image(image, FORMATS[file.suffix.lower()], metadata)
    with atomic(file) as part:
        part.write_bytes(data)


def _png_text(metadata: ImageMetadata) -> dict[str, Any]:
    from PIL.PngImagePlugin import PngInfo

    chunks = PngInfo()
    chunks.add_itxt(PARAMETERS, metadata.parameters)
    chunks.add_itxt(RECORD, json.dumps(metadata.record))
    return {"pnginfo": chunks}


def _exif(metadata: ImageMetadata) -> dict[str, Any]:
    from PIL.Image import Exif

    exif = Exif()
    exif.get_ifd(_EXIF_IFD).update(
        {
            _USER_COMMENT: _UNICODE + metadata.parameters.encode("utf-16-be"),
            _MAKER_NOTE: _MARK + json.dumps(metadata.record).encode(),
        }
    )
    data = exif.tobytes()
    if len(data) > _MAX_EXIF:
        raise DataError(f"the metadata need {len(data)} bytes, JPEG and WebP have {_MAX_EXIF}; save a .png")
    return {"exif": data}


def read_record(file: Path) -> dict[str, Any]:
    """The record of an image that paco generated.

    Raises:
        DataError: if the file is not an image, contains no record, or the record is damaged.
    """
    opened = read_encoded(file).opened
    try:
        text = _record_of(opened)
    except Exception as error:  # Pillow raises many types for damaged metadata  # noqa: BLE001
        raise DataError(f"{file}: its metadata cannot be read ({type(error).__name__}: {error})"[:300]) from None
    if text is None:
        names = sorted(key for key in opened.info if key in (PARAMETERS, "prompt", "workflow", "exif", "xmp"))
        other = f"its metadata ({', '.join(names)}) are of another tool" if names else "it has no metadata"
        raise DataError(
            f"{file}: {other}, so its origin is unknown. paco writes the origin into each image that it generates, "
            "except with --no-metadata, and many web sites remove it"
        )
    try:
        record = json.loads(text)
    except ValueError as error:
        raise DataError(f"{file}: the record of its origin is damaged ({error})") from None
    if not isinstance(record, dict):
        raise DataError(f"{file}: the record of its origin is damaged: expected a JSON object")
    return record


def _record_of(opened: Any) -> str | None:
    """The text of the record; a PNG may have it behind its pixels."""
    if opened.format == "PNG":
        text = opened.info.get(RECORD)
        return opened.text.get(RECORD) if text is None else text
    note = opened.getexif().get_ifd(_EXIF_IFD).get(_MAKER_NOTE)
    return note.removeprefix(_MARK).decode() if isinstance(note, bytes) and note.startswith(_MARK) else None
