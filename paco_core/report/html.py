"""Self-contained pages of HTML: templates with the common style, and pictures as data URLs with words."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from paco_core.io.shards import encode_png

if TYPE_CHECKING:
    from PIL.Image import Image

TEMPLATES = Path(__file__).parent / "templates"
PIXELATED_PX, LARGEST_PX = 256, 512


def render(template: Path, view: Mapping[str, Any], **filters: Callable[..., Any]) -> str:
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
    def of(cls, image: Image, alt: str) -> Picture:
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
