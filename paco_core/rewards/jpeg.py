"""Compressibility: the share of an image's bytes that JPEG saves. It needs no model, for experiments."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord

QUALITY = 95  # as in DDPO (arXiv 2305.13301), which rewards the negative file size instead


def compressibility(images: Sequence[Image], records: Sequence[PromptRecord]) -> list[float]:  # noqa: ARG001
    """1 - bytes of the JPEG / bytes of the pixels: at most 1 for any size, higher for smoother images."""
    return [1.0 - _bytes_of_jpeg(image) / (3 * image.width * image.height) for image in images]


def _bytes_of_jpeg(image: Image) -> int:
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=QUALITY)
    return len(buffer.getvalue())
