"""Drawings as SVG: boxes, arrows, words. Each brings its own light ground, so that it reads on light and dark pages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

INK, GREY, GROUND, EDGE = "#1f2330", "#5d6475", "#ffffff", "#c9cede"
#: Fill and line by kind.
COLOURS = {
    "data": ("#e8f1fc", "#4a7fc1"),
    "reward": ("#fdf0dc", "#c78a2c"),
    "policy": ("#e9f6ec", "#4b9a62"),
    "benchmark": ("#f1ebfa", "#8462b8"),
    "plain": ("#f4f5f9", "#9aa1b5"),
    "good": ("#dff3e4", "#3f9158"),
    "bad": ("#fbe3e1", "#c2554d"),
}
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
LINE = 17  # pixels from one line of words to the next


@dataclass
class Drawing:
    """A picture under way; coordinates in pixels from the upper left."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def words(self, x: float, y: float, text: str, *, size: int = 14, anchor: str = "middle", **style: str) -> None:
        """One or several lines, the first with its base line at ``y``."""
        given = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in {"fill": INK, **style}.items())
        for number, line in enumerate(text.split("\n")):
            at = f'x="{x:g}" y="{y + number * LINE:g}" font-size="{size}" text-anchor="{anchor}"'
            self.parts.append(f"<text {at}{given}>{escape(line)}</text>")

    def box(
        self, x: float, y: float, w: float, h: float, text: str = "", kind: str = "plain", *, bold: bool = False
    ) -> None:
        """A rounded box with its words in the middle; the first line is bold where asked."""
        fill, line = COLOURS[kind]
        shape = (
            f'x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="8" fill="{fill}" stroke="{line}" stroke-width="1.5"'
        )
        self.parts.append(f"<rect {shape}/>")
        lines = text.split("\n") if text else []
        top = y + h / 2 - (len(lines) - 1) * LINE / 2 + 5
        for number, part in enumerate(lines):
            first = bold and number == 0
            style = {"font_weight": "600"} if first else {}
            self.words(x + w / 2, top + number * LINE, part, size=14 if first or not bold else 13, **style)

    def path(
        self, points: Sequence[tuple[float, float]], *, colour: str = GREY, width: float = 1.6, dash: str = ""
    ) -> None:
        """A line through points."""
        along = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<polyline points="{along}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed}/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, bend: float = 0.5, dash: str = "") -> None:
        """A curve that leaves and arrives level, with a head; a straight one where both ends are above one another."""
        middle = x1 + (x2 - x1) * bend
        curve = (
            f"M{x1:g},{y1:g} L{x2:g},{y2:g}"
            if x1 == x2
            else f"M{x1:g},{y1:g} C{middle:g},{y1:g} {middle:g},{y2:g} {x2:g},{y2:g}"
        )
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<path d="{curve}" fill="none" stroke="{GREY}" stroke-width="1.4" marker-end="url(#head)"{dashed}/>'
        )

    def svg(self) -> str:
        """The whole file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="{FONT}" role="img">\n<title>{escape(self.title)}</title>\n'
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0 L10,5 L0,10 z" fill="{GREY}"/></marker></defs>\n'
            f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="12" fill="{GROUND}" '
            f'stroke="{EDGE}"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


def panel(drawing: Drawing, x: float, y: float, side: float, animal: str, ground: str) -> None:
    """A small picture of an animal's head, of the storybook kind."""
    parts = drawing.parts
    parts.append(
        f'<rect x="{x:g}" y="{y:g}" width="{side:g}" height="{side:g}" rx="4" fill="{ground}" stroke="{EDGE}"/>'
    )
    cx, cy, r = x + side / 2, y + side * 0.56, side * 0.26
    for dx in (-0.75, 0.75):
        parts.append(f'<circle cx="{cx + dx * r:g}" cy="{cy - 0.85 * r:g}" r="{0.42 * r:g}" fill="{animal}"/>')
    parts.append(f'<circle cx="{cx:g}" cy="{cy:g}" r="{r:g}" fill="{animal}"/>')
    for dx in (-0.38, 0.38):
        parts.append(f'<circle cx="{cx + dx * r:g}" cy="{cy - 0.15 * r:g}" r="{0.11 * r:g}" fill="#ffffff"/>')
