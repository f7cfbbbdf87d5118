"""Previews of the outs of a stage on the page of its asset; ``paco_pipelines.previews`` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

ROWS = 10


@dataclass(frozen=True)
class Table:
    """The first ``rows`` of a frame."""

    frame: pd.DataFrame
    rows: int = ROWS


@dataclass(frozen=True)
class Pictures:
    """One contact sheet of pictures, row by row; ``alt`` says what they are, ``captions`` what each of them is."""

    images: Sequence[Image]
    columns: int
    alt: str
    captions: Sequence[str] = ()


@dataclass(frozen=True)
class Chart:
    """A picture file."""

    file: Path


@dataclass(frozen=True)
class Page:
    """A file to open."""

    file: Path


Preview = Table | Pictures | Chart | Page
