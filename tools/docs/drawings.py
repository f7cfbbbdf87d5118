"""Draw the pictures of docs/images that are no photographs: ``python tools/docs/drawings.py``.

A test compares each file with what this would write; the graph's edges come from dvc.yaml.
"""

import math
from pathlib import Path

from canvas import COLOURS, GREY, Drawing, panel

from dvc_project.project import stages_of
from paco_core.runtime import graph as stage_graph

ROOT = Path(__file__).resolve().parents[2]
IMAGES = Path("docs") / "images"
#: Column and row of each stage, and its kind. `code` is left out: every stage depends on it.
PLACES = {
    "prompts": (0, 0, "data"), "diverse_prompts": (1, 0, "data"), "grids": (2, 0, "data"), "rankings": (3, 0, "data"),
    "annotations": (4, 0, "data"), "edit_prompts": (2, 1, "data"), "edits": (3, 1, "data"), "pairs": (5, 0.5, "data"),
    "cot_labels": (6, 0.5, "data"), "reward_lora": (0, 3.5, "reward"), "reward_merged": (1, 3.5, "reward"),
    "policies": (2.5, 4.5, "policy"), "consistency_rank": (4, 2.5, "benchmark"), "edit_reward": (4, 3.3, "benchmark"),
    "gedit": (4, 4.1, "benchmark"), "t2is": (4, 4.9, "benchmark"), "t2is_bench": (5.2, 5.6, "benchmark"),
    "vistory": (6.4, 5.6, "benchmark"),
    "report": (6, 3.3, "benchmark"),
}  # fmt: skip
WIDE, HIGH = 132, 40


def reduced(edges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Without the edges that a longer way implies."""
    above: dict[str, set[str]] = {}
    for first, second in edges:
        above.setdefault(second, set()).add(first)

    def reaches(start: str, ends: set[str]) -> bool:
        return any(start in above.get(end, ()) or reaches(start, above.get(end, set())) for end in ends)

    return [(first, second) for first, second in edges if not reaches(first, above[second] - {first})]


def graph() -> Drawing:
    """The stages of dvc.yaml.

    Raises:
        SystemExit: a stage has no place in the picture, or a place no stage.
    """
    stages = [stage for stage in stages_of(ROOT).values() if stage.dagster.get("group")]
    if odd := {stage.group for stage in stages} ^ set(PLACES):
        raise SystemExit(f"tools/docs/drawings.py: give {sorted(odd)} a place in PLACES, or take it away")
    drawing = Drawing(1120, 486, "The graph: data, reward, policies, benchmarks")
    corner = {name: (30 + 154 * column, 52 + 66 * row) for name, (column, row, _) in PLACES.items()}
    for first, second in reduced(stage_graph.edges(stages)):
        (x1, y1), (x2, y2) = corner[first], corner[second]
        if x2 > x1:
            drawing.arrow(x1 + WIDE, y1 + HIGH / 2, x2 - 2, y2 + HIGH / 2)
        else:  # from the end of the upper half to the beginning of the lower one
            middle = x1 + WIDE / 2, x2 + WIDE / 2
            drawing.path([(middle[0], y1 + HIGH), (middle[0], 196), (middle[1], 196), (middle[1], y2 - 8)])
            drawing.arrow(middle[1], y2 - 9, middle[1], y2 - 2)
    for name, (x, y) in corner.items():
        drawing.box(x, y, WIDE, HIGH, name, PLACES[name][2])
    for x, y, text, kind in (
        (30, 34, "data: what is painted, ranked and asked", "data"),
        (110, 262, "the reward model", "reward"),
        (372, 408, "generators, trained against it", "policy"),
        (806, 228, "what they learnt, on unseen data", "benchmark"),
    ):
        drawing.words(x, y, text, size=13, anchor="start", fill=COLOURS[kind][1], font_weight="600")
    return drawing


def scoring() -> Drawing:
    """How a pair is scored."""
    drawing = Drawing(900, 270, "How the reward model scores a pair of pictures")
    panel(drawing, 30, 58, 84, "#3d74c9", "#fde9c8")
    panel(drawing, 126, 58, 84, "#3d74c9", "#d7e8f7")
    drawing.words(120, 172, "two pictures")
    drawing.box(30, 190, 180, 56, "Are they consistent?\nAnswer Yes or No.")
    drawing.arrow(214, 100, 282, 124)
    drawing.arrow(214, 218, 282, 150)
    drawing.box(286, 100, 172, 74, "Qwen2.5-VL\nreward adapter merged", "reward", bold=True)
    drawing.arrow(460, 137, 502, 137)
    drawing.words(592, 50, "first token of the answer", size=13, fill=GREY)
    for y, word, share, kind in ((66, "Yes", 0.60, "good"), (106, "No", 0.045, "bad")):
        drawing.words(516, y + 19, word, anchor="start")
        drawing.box(552, y, 150 * share + 4, 28, "", kind)
        drawing.words(552 + 150 * share + 14, y + 19, f"P = {share:.3f}".rstrip("0"), size=13, anchor="start")
    drawing.words(516, 165, "all other tokens: not counted", size=13, anchor="start", fill=GREY)
    drawing.box(504, 190, 180, 56, "then the reasons\n(training only)")
    drawing.arrow(720, 137, 752, 137)
    drawing.box(756, 92, 122, 90, "0.93\nP(Yes)\nP(Yes) + P(No)", "good", bold=True)
    drawing.path([(768, 145), (866, 145)], colour="#3f9158", width=1.2)
    drawing.words(817, 214, "no Yes and no No:\nNaN, never 0", size=13, fill=GREY)
    return drawing


def rollout() -> Drawing:
    """GRPO on a flow with one noisy step."""
    drawing = Drawing(980, 400, "A group of pictures from one prompt: one noisy step, scores, advantages")
    drawing.words(34, 40, "one prompt, one group of G pictures", anchor="start", font_weight="600")
    xs = [60, 210, 330, 450, 570]
    for x, name in zip(xs, ("1", "σ₁", "σ₂", "σ₃", "0"), strict=True):
        drawing.path([(x, 70), (x, 330)], colour="#e3e6ef", width=1, dash="4 4")
        drawing.words(x, 352, name, size=13, fill=GREY)
    drawing.words(315, 382, "σ: the share of noise; each step of the sampler lowers it", size=13, fill=GREY)
    panel_y = [76, 142, 208, 274]
    scores = (0.91, 0.62, 0.78, 0.35)
    drawing.box(xs[0] - 30, 178, 60, 44, "noise")
    drawing.path([(xs[0] + 30, 200), (xs[1], 200)], width=2.2)
    drawing.words((xs[0] + xs[1]) / 2 + 12, 190, "Euler step", size=12, fill=GREY)
    drawing.words((xs[1] + xs[2]) / 2, 64, "the noisy step", size=13, fill="#c2554d", font_weight="600")
    mean = sum(scores) / len(scores)
    grounds = ("#fde9c8", "#d7e8f7", "#e4f3dc", "#f4dff0")
    animals = ("#3d74c9", "#3d74c9", "#3d74c9", "#c9543d")
    for y, score, ground, animal in zip(panel_y, scores, grounds, animals, strict=True):
        middle = y + 25
        drawing.path([(xs[1], 200), (xs[2], middle)], colour="#c2554d", width=1.8)
        drawing.path([(xs[2], middle), (xs[4], middle)], width=1.8)
        for x in xs[2:4]:
            drawing.parts.append(f'<circle cx="{x}" cy="{middle}" r="4" fill="{GREY}"/>')
        panel(drawing, xs[4], y, 50, animal, ground)
        drawing.words(xs[4] + 82, middle + 5, f"{score:.2f}", size=14)
        width = (score - mean) * 260
        kind = "good" if width > 0 else "bad"
        drawing.box(800 + min(width, 0), y + 10, abs(width), 30, "", kind)
    drawing.parts.append(f'<circle cx="{xs[1]}" cy="200" r="4" fill="{GREY}"/>')
    drawing.words(xs[4] + 82, 64, "rewards", size=13, font_weight="600")
    drawing.path([(800, 70), (800, 330)], colour=GREY, width=1.2)
    drawing.words(800, 64, "advantages", size=13, font_weight="600")
    drawing.words(800, 352, "the group's mean", size=13, fill=GREY)
    drawing.words(736, 382, "less likely", size=13, fill=COLOURS["bad"][1])
    drawing.words(862, 382, "more likely", size=13, fill=COLOURS["good"][1])
    return drawing


def log_tame() -> Drawing:
    """Log-tamed aggregation: what ln(1 + R) does, and when."""
    drawing = Drawing(900, 330, "Log-tamed aggregation")
    left, bottom, scale = 70, 270, 200
    drawing.words(left, 36, "what it does", anchor="start", font_weight="600")
    drawing.path([(left, 56), (left, bottom), (left + 230, bottom)], colour=GREY)
    for value in (0.5, 1.0):
        drawing.words(left + scale * value, bottom + 20, f"{value:g}", size=12, fill=GREY)
        drawing.words(left - 10, bottom - scale * value + 4, f"{value:g}", size=12, anchor="end", fill=GREY)
    drawing.words(left + 115, bottom + 42, "reward R", size=13, fill=GREY)
    grid = [step / 40 for step in range(41)]
    drawing.path([(left + scale * r, bottom - scale * r) for r in grid], dash="5 4")
    drawing.path([(left + scale * r, bottom - scale * math.log1p(r)) for r in grid], colour="#c78a2c", width=2.6)
    drawing.words(left + 206, bottom - 200, "R", anchor="start", fill=GREY)
    drawing.words(left + 206, bottom - 134, "ln(1 + R)", anchor="start", fill="#a8701a", font_weight="600")
    drawing.words(400, 36, "when: a reward that varies too much for its mean", anchor="start", font_weight="600")
    rows = (
        (70, "consistency", "std / mean = 0.31", "above 0.2: ln(1 + R)", "reward"),
        (150, "clip_t", "std / mean = 0.04", "R as it is", "plain"),
    )
    for y, name, figure, then, kind in rows:
        drawing.box(400, y, 120, 56, name, kind)
        drawing.words(588, y + 33, figure, size=13)
        drawing.arrow(652, y + 28, 684, y + 28)
        drawing.box(688, y, 180, 56, then, kind)
    drawing.path([(868, 98), (884, 98), (884, 268), (866, 268)])
    drawing.arrow(868, 268, 862, 268)
    drawing.arrow(738, 206, 738, 236)
    drawing.box(600, 240, 260, 56, "weighted sum, then centred\nin each group", "policy")
    return drawing


def faces() -> Drawing:
    """One graph, three faces."""
    drawing = Drawing(980, 380, "One graph, three faces: Dagster, DVC and MLflow around dvc.yaml")
    drawing.box(380, 148, 220, 74, "dvc.yaml\nstages, deps, params, outs", "plain", bold=True)
    drawing.box(
        34, 44, 230, 92, "Dagster: when and where\nlineage, schedules, checks,\nclusters, alerts", "data", bold=True
    )
    drawing.box(34, 228, 230, 92, "Your terminal\ndvc repro, dvc exp run,\nmake demo", "plain", bold=True)
    drawing.box(
        716,
        44,
        230,
        92,
        "DVC: whether to run\nmd5 of code, data, parameters;\nrun cache, dvc.lock",
        "policy",
        bold=True,
    )
    drawing.box(716, 228, 230, 92, "MLflow: how well\nfigures, curves, pictures,\nchampions", "benchmark", bold=True)
    drawing.arrow(266, 90, 376, 168)
    drawing.arrow(266, 274, 376, 204)
    drawing.arrow(602, 168, 712, 90)
    drawing.arrow(602, 204, 712, 274)
    drawing.arrow(831, 226, 831, 140, dash="4 4")
    drawing.words(322, 84, "materialise", size=13, fill=GREY)
    drawing.words(322, 294, "run", size=13, fill=GREY)
    drawing.words(652, 84, "decides, records", size=13, fill=GREY)
    drawing.words(652, 294, "reports", size=13, fill=GREY)
    drawing.words(841, 187, "joined by md5", size=13, anchor="start", fill=GREY)
    drawing.words(
        490, 346, "However a stage is started, the same command leaves the same files, records and figures.", fill=GREY
    )
    return drawing


DRAWINGS = {"graph": graph, "scoring": scoring, "rollout": rollout, "log-tame": log_tame, "faces": faces}

if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (ROOT / IMAGES / f"{name}.svg").write_text(draw().svg())
