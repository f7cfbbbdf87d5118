"""Drawing of the graph, docs/images/graph.svg, from the stages of dvc.yaml: ``python tools/docs/drawings.py``.

A test compares the file with what this would write. It has a light ground, so it reads on light and dark pages.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from dvc_project.project import stages_of
from paco_core.runtime import graph as stage_graph

ROOT = Path(__file__).resolve().parents[2]
IMAGES = Path("docs") / "images"
GRAPH = IMAGES / "graph.svg"
#: Column and row of each stage, and its kind. `code` is left out: every stage depends on it.
PLACES = {
    "prompts": (0, 0, "data"), "diverse_prompts": (1, 0, "data"), "grids": (2, 0, "data"), "rankings": (3, 0, "data"),
    "annotations": (4, 0, "data"), "edit_prompts": (2, 1, "data"), "edits": (3, 1, "data"), "pairs": (5, 0.5, "data"),
    "cot_labels": (6, 0.5, "data"), "reward_lora": (0, 3.5, "reward"), "reward_merged": (1, 3.5, "reward"),
    "policies": (2.5, 4.5, "policy"), "consistency_rank": (4, 2.5, "benchmark"), "edit_reward": (4, 3.3, "benchmark"),
    "gedit": (4, 4.1, "benchmark"), "t2is": (4, 4.9, "benchmark"), "t2is_bench": (5, 5.6, "benchmark"),
    "vistory": (6, 4.9, "benchmark"), "report": (6, 3.3, "benchmark"),
}  # fmt: skip
WIDE, HIGH = 132, 40
WIDTH, HEIGHT = 1120, 486
INK, GREY, GROUND, EDGE = "#1f2330", "#5d6475", "#ffffff", "#c9cede"
#: Fill and line by kind.
COLOURS = {
    "data": ("#e8f1fc", "#4a7fc1"),
    "reward": ("#fdf0dc", "#c78a2c"),
    "policy": ("#e9f6ec", "#4b9a62"),
    "benchmark": ("#f1ebfa", "#8462b8"),
}
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def box(x: float, y: float, text: str, kind: str) -> list[str]:
    """A rounded box with a word in its middle; coordinates are pixels from the upper left."""
    fill, line = COLOURS[kind]
    shape = (
        f'x="{x:g}" y="{y:g}" width="{WIDE:g}" height="{HIGH:g}" rx="8" fill="{fill}" stroke="{line}" '
        'stroke-width="1.5"'
    )
    place = f'x="{x + WIDE / 2:g}" y="{y + HIGH / 2 + 5:g}" font-size="14" text-anchor="middle" fill="{INK}"'
    return [f"<rect {shape}/>", f"<text {place}>{escape(text)}</text>"]


def caption(x: float, y: float, text: str, kind: str) -> str:
    place = f'x="{x:g}" y="{y:g}" font-size="13" text-anchor="start" fill="{COLOURS[kind][1]}" font-weight="600"'
    return f"<text {place}>{escape(text)}</text>"


def path(points: Sequence[tuple[float, float]]) -> str:
    """A line through points."""
    along = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{along}" fill="none" stroke="{GREY}" stroke-width="1.6"/>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """A curve that leaves and arrives level, with a head; a straight one if one end is above the other."""
    middle = (x1 + x2) / 2
    end = f"{x2:g},{y2:g}"
    curve = f"L{end}" if x1 == x2 else f"C{middle:g},{y1:g} {middle:g},{y2:g} {end}"
    return f'<path d="M{x1:g},{y1:g} {curve}" fill="none" stroke="{GREY}" stroke-width="1.4" marker-end="url(#head)"/>'


def reduced(edges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without the edges that a longer way implies."""
    above: dict[str, set[str]] = {}
    for first, second in edges:
        above.setdefault(second, set()).add(first)

    def reaches(start: str, ends: set[str]) -> bool:
        return any(start in above.get(end, ()) or reaches(start, above.get(end, set())) for end in ends)

    return [(first, second) for first, second in edges if not reaches(first, above[second] - {first})]


def graph() -> str:
    """The stages of dvc.yaml as SVG.

    Raises:
        SystemExit: a stage has no place in the picture, or a place no stage.
    """
    stages = [stage for stage in stages_of(ROOT).values() if stage.dagster.get("group")]
    if odd := {stage.group for stage in stages} ^ set(PLACES):
        raise SystemExit(f"tools/docs/drawings.py: give {sorted(odd)} a place in PLACES, or take it away")
    corner = {name: (30 + 154 * column, 52 + 66 * row) for name, (column, row, _) in PLACES.items()}
    parts = []
    for first, second in reduced(stage_graph.edges(stages)):
        (x1, y1), (x2, y2) = corner[first], corner[second]
        if x2 > x1:
            parts.append(arrow(x1 + WIDE, y1 + HIGH / 2, x2 - 2, y2 + HIGH / 2))
        else:  # from the end of the upper half to the beginning of the lower one
            middle = x1 + WIDE / 2, x2 + WIDE / 2
            parts.append(path([(middle[0], y1 + HIGH), (middle[0], 196), (middle[1], 196), (middle[1], y2 - 8)]))
            parts.append(arrow(middle[1], y2 - 9, middle[1], y2 - 2))
    parts += [part for name, (x, y) in corner.items() for part in box(x, y, name, PLACES[name][2])]
    parts += [
        caption(30, 34, "data: prompts, images, rankings and pairs", "data"),
        caption(110, 262, "reward model", "reward"),
        caption(372, 408, "training of the image generators", "policy"),
        caption(806, 228, "benchmarks on held-out data", "benchmark"),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="{FONT}" role="img">\n<title>The graph: data, reward, policies, benchmarks</title>\n'
        '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0,0 L10,5 L0,10 z" fill="{GREY}"/></marker></defs>\n'
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="12" fill="{GROUND}" stroke="{EDGE}"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


if __name__ == "__main__":
    (ROOT / GRAPH).write_text(graph())
