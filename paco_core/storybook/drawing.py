"""Panels drawn by code: round animals in small scenes, in four styles, from 24 pixels upwards.

Everything is drawn in unit coordinates on a larger canvas and scaled down, so that a panel looks the
same at every size. The same panel, size and random state give the same pixels.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from paco_core.storybook.world import Panel

RGB = tuple[int, int, int]

BODY: dict[str, RGB] = {
    "red": (222, 52, 48), "yellow": (250, 204, 40), "green": (74, 172, 66),
    "blue": (58, 110, 222), "purple": (142, 68, 188), "white": (246, 246, 242),
}  # fmt: skip
SCALE = {"small": 0.62, "medium": 0.82, "big": 1.04}
INK: RGB = (34, 30, 44)
PIXELS = 16  # cells of the mosaic style along a side


def _mix(a: RGB, b: RGB, t: float) -> RGB:
    return (round(a[0] + (b[0] - a[0]) * t), round(a[1] + (b[1] - a[1]) * t), round(a[2] + (b[2] - a[2]) * t))


@dataclass
class Pen:
    """Draws in unit coordinates; ``frame`` maps a character's own coordinates into the panel."""

    draw: ImageDraw.ImageDraw
    side: int
    contour: float = 0.0
    origin: tuple[float, float] = (0.0, 0.0)
    scale: float = 1.0

    def _points(self, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        ox, oy = self.origin
        return [((ox + x * self.scale) * self.side, (oy + y * self.scale) * self.side) for x, y in points]

    def ellipse(self, x: float, y: float, rx: float, ry: float, fill: RGB, edge: RGB | None = None) -> None:
        (x0, y0), (x1, y1) = self._points([(x - rx, y - ry), (x + rx, y + ry)])
        width = max(1, round(self.contour * self.side)) if edge and self.contour else 0
        if width:
            self.draw.ellipse((x0 - width, y0 - width, x1 + width, y1 + width), fill=edge)
        self.draw.ellipse((x0, y0, x1, y1), fill=fill)

    def polygon(self, points: Sequence[tuple[float, float]], fill: RGB, edge: RGB | None = None) -> None:
        scaled = self._points(points)
        if edge and self.contour:
            width = max(2, round(2 * self.contour * self.side))
            self.draw.line([*scaled, scaled[0], scaled[1]], fill=edge, width=width, joint="curve")
        self.draw.polygon(scaled, fill=fill)

    def line(self, points: Sequence[tuple[float, float]], fill: RGB, width: float) -> None:
        self.draw.line(
            self._points(points),
            fill=fill,
            width=max(1, round(width * self.scale * self.side)),
            joint="curve",
        )


def _beach(pen: Pen) -> None:
    pen.polygon([(0, 0), (1, 0), (1, 0.5), (0, 0.5)], (126, 206, 240))
    pen.ellipse(0.84, 0.16, 0.11, 0.11, (255, 226, 92))
    pen.polygon([(0, 0.46), (1, 0.46), (1, 0.68), (0, 0.68)], (30, 140, 196))
    for x in (0.1, 0.42, 0.8):
        pen.line([(x - 0.07, 0.54), (x, 0.52), (x + 0.07, 0.54)], (190, 232, 246), 0.02)
    pen.polygon([(0, 0.68), (0.5, 0.64), (1, 0.68), (1, 1), (0, 1)], (244, 220, 160))


def _forest(pen: Pen) -> None:
    pen.polygon([(0, 0), (1, 0), (1, 1), (0, 1)], (176, 216, 184))
    for x, top in ((0.06, 0.1), (0.3, 0.02), (0.7, 0.04), (0.95, 0.12)):
        pen.polygon([(x - 0.03, 0.5), (x + 0.03, 0.5), (x + 0.03, 0.8), (x - 0.03, 0.8)], (104, 74, 50))
        pen.polygon([(x - 0.17, 0.62), (x, top), (x + 0.17, 0.62)], (20, 86, 62))
        pen.polygon([(x - 0.13, 0.42), (x, top - 0.06), (x + 0.13, 0.42)], (28, 104, 72))
    pen.polygon([(0, 0.74), (1, 0.74), (1, 1), (0, 1)], (66, 110, 58))


def _night(pen: Pen) -> None:
    pen.polygon([(0, 0), (1, 0), (1, 1), (0, 1)], (24, 26, 74))
    pen.ellipse(0.17, 0.18, 0.11, 0.11, (252, 244, 200))
    pen.ellipse(0.22, 0.15, 0.1, 0.1, (24, 26, 74))
    for x, y in ((0.45, 0.09), (0.62, 0.2), (0.82, 0.1), (0.92, 0.34), (0.08, 0.44)):
        pen.ellipse(x, y, 0.018, 0.018, (255, 250, 214))
    pen.ellipse(0.5, 1.1, 0.9, 0.36, (46, 50, 108))


def _snow(pen: Pen) -> None:
    pen.polygon([(0, 0), (1, 0), (1, 1), (0, 1)], (178, 200, 222))
    pen.polygon([(0.02, 0.66), (0.3, 0.2), (0.58, 0.66)], (132, 152, 184))
    pen.polygon([(0.2, 0.36), (0.3, 0.2), (0.4, 0.36)], (250, 252, 255))
    pen.polygon([(0.5, 0.66), (0.8, 0.28), (1.1, 0.66)], (148, 166, 196))
    pen.ellipse(0.5, 1.02, 0.9, 0.4, (236, 243, 252))
    for x, y in ((0.12, 0.14), (0.5, 0.1), (0.9, 0.16), (0.68, 0.24), (0.08, 0.42), (0.93, 0.46)):
        pen.ellipse(x, y, 0.022, 0.022, (255, 255, 255))


def _desert(pen: Pen) -> None:
    pen.polygon([(0, 0), (1, 0), (1, 1), (0, 1)], (252, 196, 138))
    pen.ellipse(0.2, 0.2, 0.12, 0.12, (255, 244, 222))
    pen.ellipse(0.25, 0.82, 0.5, 0.28, (220, 134, 74))
    pen.ellipse(0.8, 0.9, 0.6, 0.32, (200, 110, 58))
    pen.polygon([(0.87, 0.24), (0.95, 0.24), (0.95, 0.72), (0.87, 0.72)], (52, 128, 84))
    pen.polygon([(0.78, 0.36), (0.83, 0.36), (0.83, 0.46), (0.9, 0.46), (0.9, 0.52), (0.78, 0.52)], (52, 128, 84))


def _city(pen: Pen) -> None:
    pen.polygon([(0, 0), (1, 0), (1, 1), (0, 1)], (206, 200, 214))
    for x, top, wide, grey in (
        (0.0, 0.26, 0.2, 112),
        (0.2, 0.08, 0.18, 92),
        (0.62, 0.14, 0.2, 98),
        (0.82, 0.3, 0.2, 116),
    ):
        pen.polygon([(x, top), (x + wide, top), (x + wide, 0.8), (x, 0.8)], (grey, grey, grey + 12))
        for row in range(4):
            for column in (0.05, 0.12):
                y = top + 0.06 + row * 0.11
                pen.polygon(
                    [
                        (x + column, y),
                        (x + column + 0.04, y),
                        (x + column + 0.04, y + 0.05),
                        (x + column, y + 0.05),
                    ],
                    (255, 232, 140),
                )
    pen.polygon([(0, 0.78), (1, 0.78), (1, 1), (0, 1)], (86, 84, 96))
    pen.line([(0.04, 0.92), (0.3, 0.92)], (236, 232, 220), 0.02)
    pen.line([(0.7, 0.92), (0.96, 0.92)], (236, 232, 220), 0.02)


SCENES = {
    "beach": _beach,
    "forest": _forest,
    "night": _night,
    "snow": _snow,
    "desert": _desert,
    "city": _city,
}


def _ears(pen: Pen, species: str, body: RGB, edge: RGB) -> None:
    """What stands out behind the head, and shows the species from afar."""
    inner = _mix(body, (255, 170, 180), 0.6)
    for side in (-1, 1):
        if species == "cat":
            pen.polygon([(side * 0.27, -0.2), (side * 0.25, -0.5), (side * 0.04, -0.34)], body, edge)
            pen.polygon([(side * 0.22, -0.28), (side * 0.225, -0.42), (side * 0.11, -0.33)], inner)
        elif species == "rabbit":
            pen.ellipse(side * 0.12, -0.52, 0.075, 0.24, body, edge)
            pen.ellipse(side * 0.12, -0.5, 0.035, 0.16, inner)
        elif species == "bear":
            pen.ellipse(side * 0.22, -0.36, 0.11, 0.11, body, edge)
            pen.ellipse(side * 0.22, -0.36, 0.055, 0.055, _mix(body, INK, 0.35))
        elif species == "frog":
            pen.ellipse(side * 0.16, -0.36, 0.11, 0.11, body, edge)
        elif species == "elephant":
            pen.ellipse(side * 0.36, -0.14, 0.17, 0.21, body, edge)
            pen.ellipse(side * 0.37, -0.13, 0.1, 0.14, inner)
    if species == "chick":
        pen.polygon([(-0.06, -0.34), (-0.09, -0.5), (0.0, -0.42), (0.09, -0.5), (0.06, -0.34)], body, edge)


def _body(pen: Pen, species: str, body: RGB, edge: RGB) -> None:
    belly = _mix(body, (255, 255, 255), 0.45)
    if species == "cat":
        pen.line(
            [(0.18, 0.32), (0.36, 0.28), (0.38, 0.1)],
            edge if pen.contour else body,
            0.1 if pen.contour else 0.075,
        )
        pen.line([(0.18, 0.32), (0.36, 0.28), (0.38, 0.1)], body, 0.065)
    if species == "chick":
        for side in (-1, 1):
            pen.ellipse(side * 0.28, 0.18, 0.1, 0.13, _mix(body, INK, 0.12), edge)
    for side in (-1, 1):
        feet = (240, 140, 30) if species == "chick" else _mix(body, INK, 0.1)
        pen.ellipse(side * 0.12, 0.42, 0.1, 0.06, feet, edge)
    pen.ellipse(0, 0.22, 0.25, 0.23, body, edge)
    pen.ellipse(0, 0.26, 0.15, 0.15, belly)


def _face(pen: Pen, species: str, body: RGB, edge: RGB) -> None:
    wide = 0.34 if species == "frog" else 0.29
    pen.ellipse(0, -0.12, wide, 0.25, body, edge)
    eye_y = -0.37 if species == "frog" else -0.15
    for side in (-1, 1):
        x = side * (0.16 if species == "frog" else 0.12)
        pen.ellipse(x, eye_y, 0.062, 0.07, (255, 255, 255))
        pen.ellipse(x + 0.008, eye_y + 0.008, 0.042, 0.05, INK)
        pen.ellipse(x + 0.022, eye_y - 0.014, 0.015, 0.017, (255, 255, 255))
        pen.ellipse(side * 0.2, -0.03, 0.05, 0.032, _mix(body, (255, 120, 130), 0.55))
    dark = _mix(body, INK, 0.75)
    if species == "chick":
        pen.polygon([(-0.08, -0.06), (0.08, -0.06), (0, 0.05)], (246, 146, 30))
    elif species == "elephant":
        pen.line([(0, -0.08), (0, 0.1), (0.07, 0.19)], edge if pen.contour else _mix(body, INK, 0.25), 0.14)
        pen.line([(0, -0.08), (0, 0.1), (0.07, 0.19)], _mix(body, (255, 255, 255), 0.18), 0.09)
    elif species == "frog":
        pen.line([(-0.18, -0.06), (-0.08, 0.0), (0.08, 0.0), (0.18, -0.06)], dark, 0.035)
    else:
        muzzle = _mix(body, (255, 255, 255), 0.6)
        if species == "bear":
            pen.ellipse(0, -0.02, 0.12, 0.09, muzzle)
        pen.ellipse(0, -0.05, 0.04, 0.028, dark if species != "rabbit" else (232, 112, 132))
        pen.line([(-0.06, 0.02), (0, -0.01), (0.06, 0.02)], dark, 0.022)
        if species == "rabbit":
            pen.polygon([(-0.03, 0.02), (0.03, 0.02), (0.03, 0.08), (-0.03, 0.08)], (255, 255, 255))
        if species == "cat":
            for side in (-1, 1):
                pen.line([(side * 0.14, -0.03), (side * 0.34, -0.07)], dark, 0.014)
                pen.line([(side * 0.14, 0.01), (side * 0.34, 0.03)], dark, 0.014)


def _accessory(pen: Pen, accessory: str, edge: RGB) -> None:
    if accessory == "hat":
        pen.polygon([(-0.15, -0.36), (-0.13, -0.66), (0.13, -0.66), (0.15, -0.36)], (30, 28, 36), edge)
        pen.polygon([(-0.15, -0.44), (0.15, -0.44), (0.15, -0.38), (-0.15, -0.38)], (236, 72, 120))
        pen.polygon([(-0.26, -0.36), (0.26, -0.36), (0.26, -0.3), (-0.26, -0.3)], (30, 28, 36), edge)
    elif accessory == "scarf":
        pen.polygon([(0.08, 0.1), (0.21, 0.1), (0.22, 0.36), (0.1, 0.36)], (236, 116, 20), edge)
        pen.polygon([(-0.25, 0.05), (0.25, 0.05), (0.25, 0.17), (-0.25, 0.17)], (248, 134, 30), edge)
        for x in (-0.18, -0.06, 0.06, 0.18):
            pen.polygon([(x - 0.02, 0.05), (x + 0.02, 0.05), (x + 0.02, 0.17), (x - 0.02, 0.17)], (255, 240, 210))
    elif accessory == "balloon":
        pen.line([(0.3, 0.24), (0.4, -0.2)], INK, 0.02)
        pen.ellipse(0.42, -0.36, 0.16, 0.19, (250, 110, 180), edge)
        pen.ellipse(0.37, -0.43, 0.04, 0.055, (255, 214, 236))


def _crayon(image: Image.Image) -> Image.Image:
    """Diagonal strokes of paper showing through, as of a wax crayon."""
    side = image.width
    strokes = Image.new("L", image.size, 0)
    draw = ImageDraw.Draw(strokes)
    for start in range(-side, side, max(2, side // 8)):
        draw.line([(start, side), (start + side, 0)], fill=150, width=max(1, side // 22))
    return Image.composite(Image.new("RGB", image.size, (255, 252, 240)), image, strokes)


def draw(panel: Panel, size: int, rng: random.Random | None = None) -> Image.Image:
    """One panel as an RGB picture of ``size`` x ``size`` pixels; ``rng`` moves the character a little.

    Raises:
        ValueError: below 16 pixels, where nothing could be read.
    """
    image, side = _canvas(panel.scene, size)
    scale = SCALE[panel.size] * 0.86
    shift = (rng.uniform(-0.04, 0.04), rng.uniform(-0.02, 0.02)) if rng else (0.0, 0.0)
    left = -0.06 * scale if panel.accessory == "balloon" else 0.0
    body = BODY[panel.colour]
    outlined = panel.style == "outline"
    pen = Pen(
        ImageDraw.Draw(image),
        side,
        0.028 if outlined else 0.01,
        (0.5 + left + shift[0], 0.92 - 0.47 * scale + shift[1]),
        scale,
    )
    edge = INK if outlined else _mix(body, INK, 0.55)
    _ears(pen, panel.species, body, edge)
    _body(pen, panel.species, body, edge)
    _face(pen, panel.species, body, edge)
    _accessory(pen, panel.accessory, INK if outlined else (70, 56, 66))
    return _styled(image, panel.style, size)


def draw_scene(scene: str, style: str, size: int) -> Image.Image:
    """A scene without a character, as :func:`draw` draws it."""
    return _styled(_canvas(scene, size)[0], style, size)


def _canvas(scene: str, size: int) -> tuple[Image.Image, int]:
    """A scene on a canvas that is several times as large as the picture, and the side of the canvas in pixels."""
    if size < 16:
        raise ValueError(f"a panel needs at least 16 pixels a side, asked for {size}")
    side = size * (4 if size <= 48 else 3 if size <= 96 else 2)
    image = Image.new("RGB", (side, side))
    SCENES[scene](Pen(ImageDraw.Draw(image), side))
    return image, side


def _styled(image: Image.Image, style: str, size: int) -> Image.Image:
    """The canvas in its style, as a picture of ``size`` x ``size`` pixels."""
    if style == "crayon":
        image = _crayon(image)
    if style == "pixel":
        return image.resize((PIXELS, PIXELS), Image.Resampling.BOX).resize((size, size), Image.Resampling.NEAREST)
    return image.resize((size, size), Image.Resampling.BOX)


def tile(images: Sequence[Image.Image], layout: tuple[int, int]) -> Image.Image:
    """Panels in reading order to one grid; they touch one another.

    Raises:
        ValueError: when their number is not rows x columns, or their sizes differ.
    """
    rows, columns = layout
    if len(images) != rows * columns or len({image.size for image in images}) != 1:
        raise ValueError(f"a {rows}x{columns} grid needs {rows * columns} panels of one size, got {len(images)}")
    wide, high = images[0].size
    grid = Image.new("RGB", (columns * wide, rows * high))
    for n, image in enumerate(images):
        grid.paste(image, (n % columns * wide, n // columns * high))
    return grid
