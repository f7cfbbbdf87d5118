"""Self-contained HTML pages: templates with a common style, images as data URLs, and numbers by key.

Each number of the report is registered once, shown from here, and written to ``metrics.json``: it cannot stand on the
page without a key, so the page and the file cannot disagree.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from paco_core.io import paths
from paco_core.io.shards import encode_png
from paco_core.runtime.stage import skip_reason

if TYPE_CHECKING:
    from PIL.Image import Image

TEMPLATES = Path(__file__).parent / "templates"
PIXELATED_PX, LARGEST_PX = 256, 512
Number = float | int | None
UNKNOWN = "–"


def render_page(template: Path, view: Mapping[str, Any], **filters: Callable[..., Any]) -> str:
    """The page that a template makes of ``view``.

    It finds the macro of ``picture.html.j2``, ``style``, and the filter ``raw`` for what our own code drew, every text
    from outside escaped by it.
    """
    env = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    env.filters |= {"raw": Markup, **filters}
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    page: str = env.get_template(template.name).render(**view, style=style)
    return page


@dataclass(frozen=True)
class Picture:
    """A picture ready to stand in a page; small ones are shown enlarged, pixel by pixel."""

    url: str
    alt: str
    width: int
    height: int

    @property
    def pixelated(self) -> bool:
        return max(self.width, self.height) <= PIXELATED_PX

    @classmethod
    def from_image(cls, image: Image, alt: str) -> Picture:
        """Lossless as it is, or shrunk to :data:`LARGEST_PX` as JPEG: a page of megapixels helps nobody."""
        kind, data = "png", io.BytesIO()
        if max(image.size) > LARGEST_PX:
            image = image.copy()
            image.thumbnail((LARGEST_PX, LARGEST_PX))
            kind = "jpeg"
            image.save(data, format="JPEG", quality=88)
        else:
            data.write(encode_png(image))
        return cls(_data_url(kind, data.getvalue()), alt, image.width, image.height)

    @classmethod
    def thumbnail(cls, image: Image, alt: str, side: int) -> Picture:
        """At most ``side`` pixels wide and high, as WebP: one of many."""
        image, data = image.copy(), io.BytesIO()
        image.thumbnail((side, side))
        image.save(data, format="WEBP", quality=80)
        return cls(_data_url("webp", data.getvalue()), alt, image.width, image.height)


def _data_url(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def text_of(value: Number, form: str) -> str:
    """A number in a format such as ``.3f``, ``+.3f``, ``.0%`` or ``duration``; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if form == "duration":
        return duration(value)
    return format(value, form).replace("-", "−")  # a true minus sign is as wide as a plus


def duration(seconds: float) -> str:
    """``4.2 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    total_seconds = round(seconds)
    if total_seconds < 60:
        return f"{total_seconds} s"
    if total_seconds < 3600:
        return f"{total_seconds // 60} min {total_seconds % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


@dataclass
class Figures:
    """All numbers by dotted key."""

    values: dict[str, Number] = field(default_factory=dict)

    def add(self, key: str, value: Any) -> str:
        """Register a number (None and NaN = unknown) and return its key.

        Raises:
            ValueError: when the key holds another number already.
        """
        number = None if value is None or not math.isfinite(value) else value
        if self.values.setdefault(key, number) != number:
            raise ValueError(f"figure {key} is {self.values[key]} already, cannot be {number} too")
        return key

    def add_all(self, prefix: str, tree: Mapping[str, Any]) -> None:
        """Register every number of a nested mapping under dotted keys."""
        for name, value in tree.items():
            key = f"{prefix}.{name}"
            if isinstance(value, Mapping):
                self.add_all(key, value)
            elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
                self.add(key, value)

    def show(self, key: str, form: str = ".3f") -> str:
        """The number as HTML, marked with its key so that a reader (and a test) finds it in the file."""
        text = text_of(self.values[key], form)
        missing = ' title="not measured"' if text == UNKNOWN else ""
        name, format_name = escape(key, quote=True), escape(form, quote=True)
        return f'<data class="num" data-figure="{name}" data-format="{format_name}"{missing}>{text}</data>'

    def range(self, key: str, form: str = ".3f") -> str:
        """``low to high`` of the interval under ``key`` (keys ``.low`` and ``.high``), and how many cases are missing.

        A dash where there are too few cases for an interval.
        """
        low, high = (self.show(f"{key}.{end}", form) for end in ("low", "high"))
        missing = f", {self.show(f'{key}.missing', 'd')} missing" if self.values.get(f"{key}.missing") else ""
        return (f"{low} to {high}" if self.values[f"{key}.low"] is not None else low) + missing


@dataclass(frozen=True)
class Missing:
    """A part that cannot be shown for want of ``out``, which a stage makes, or an item of one."""

    part: str
    out: Path
    item: str | None = None

    @property
    def path(self) -> str:
        return self.out.as_posix()

    @property
    def make(self) -> str:
        """The command that makes it."""
        return f"dvc repro {paths.producer(self.out)}{f'@{self.item}' if self.item else ''}"


@dataclass(frozen=True)
class Skipped:
    """A part that there is not, since its stage had nothing to do."""

    part: str
    reason: str

    @classmethod
    def from_folder(cls, part: str, folder: Path) -> Skipped | None:
        """The part made of the out ``folder``; None where its stage did something, or has not run."""
        reason = skip_reason(folder)
        return None if reason is None else cls(part, reason)
