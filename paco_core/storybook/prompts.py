"""Prompts: what a storybook prompt says, how it is read, and the true reasons for an answer.

Prompts have the T2IS text layout. The wording is short and repeats the shared traits in every panel: a small text
encoder has to bind them to the right place. Every attribute is in the text, so a prompt can be read back into panels.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from paco_core.io.files import DataError, digest
from paco_core.storybook.world import SHARED_TRAITS, VOCABULARY, Panel, Size, differing_traits, random_panel

Dimension = Literal["Style", "Identity", "Logic"]

COUNTS = {1: "ONE", 2: "TWO", 3: "THREE", 4: "FOUR", 5: "FIVE", 6: "SIX", 7: "SEVEN", 8: "EIGHT", 9: "NINE"}
PLACES = {
    "beach": "on the beach",
    "forest": "in the forest",
    "night": "at night",
    "snow": "in the snow",
    "desert": "in the desert",
    "city": "in the city",
}
#: (category, subcategory, opening words, theme): the places that the storybook fills of the T2IS categories.
KINDS = (
    ("Character", "Multi-Scenario", "of", "{who} in many places, {style} style"),
    ("Character", "Portrait Design", "portraying", "portraits of {who}, {style} style"),
    ("Story", "Children Book", "telling of", "a picture book about {who}, {style} style"),
    ("Process", "Growth", "growing up:", "how {who} grows up, {style} style"),
    ("Design Style", "Creative Style", "designing", "a design of {who}, {style} style"),
    ("Instruction", "Travel Guide", "travelling with", "a journey with {who}, {style} style"),
)
SIZES: tuple[Size, ...] = ("small", "medium", "big")


@dataclass(frozen=True)
class StorybookPrompt:
    """A T2IS prompt and the panels that it asks for, in reading order."""

    prompt: str
    theme: str
    layout: str
    category: str
    task_name: str
    criteria: dict[Dimension, dict[str, str]]
    panels: tuple[Panel, ...]

    @property
    def idx(self) -> str:
        """Stable id by content."""
        return digest([self.prompt, self.layout])


def character(panel: Panel) -> str:
    """Who is shown: "a red cat with a scarf"."""
    extra = "" if panel.accessory == "nothing" else f" with a {panel.accessory}"
    return f"a {panel.colour} {panel.species}{extra}"


def panel_text(panel: Panel) -> str:
    """A panel's own sentence: "a small red cat with a scarf on the beach, crayon style."."""
    return f"a {panel.size} {character(panel)[2:]} {PLACES[panel.scene]}, {panel.style} style."


def place_marks(rows: int, columns: int) -> list[str]:
    """Marks of the panels in reading order, ``[TOP]-[LEFT]:`` and so on.

    Raises:
        ValueError: for grids that have no such names (more than 3 rows, or more than 4 columns in rows).
    """
    if rows == 1:
        return [f"[PANEL-{n}]:" for n in range(1, columns + 1)]
    vertical = {2: ["TOP", "BOTTOM"], 3: ["TOP", "MIDDLE", "BOTTOM"]}.get(rows)
    horizontal = {
        1: ["MIDDLE"],
        2: ["LEFT", "RIGHT"],
        3: ["LEFT", "CENTER", "RIGHT"],
        4: ["LEFT", "MIDDLE-LEFT", "MIDDLE-RIGHT", "RIGHT"],
    }.get(columns)
    if vertical is None or horizontal is None:
        raise ValueError(
            f"the storybook has no names for the panels of a {rows}x{columns} grid; use one row, or up to 3 rows of "
            "up to 4 panels"
        )
    return [f"[{v}]-[{h}]:" for v in vertical for h in horizontal]


def random_set(kind: int, count: int, rng: random.Random) -> tuple[int, list[Panel]]:
    """(kind, panels) of a consistent set: shared traits equal; scenes differ, or in a growth set sizes rise."""
    first, task = random_panel(rng), KINDS[kind][1]
    if task == "Growth":
        return kind, [first.with_trait("size", SIZES[n * (len(SIZES) - 1) // max(1, count - 1)]) for n in range(count)]
    if task == "Portrait Design":
        return kind, [first.with_trait("size", "big")] * count
    scenes = list(VOCABULARY["scene"])
    rng.shuffle(scenes)
    placed = [first.with_trait("scene", scenes[n % len(scenes)]) for n in range(count)]
    return kind, [panel.with_trait("size", rng.choice(SIZES)) for panel in placed]


def _criteria(panel: Panel, task: str) -> dict[Dimension, dict[str, str]]:
    logic = "The animal grows from panel to panel." if task == "Growth" else "The panels tell of one animal."
    return {
        "Style": {"Drawing style": f"All panels are drawn in {panel.style} style."},
        "Identity": {"Character": f"All panels show {character(panel)}."},
        "Logic": {"Order": logic},
    }


def compose_storybook_prompt(panels: list[Panel], layout: str, kind: int) -> StorybookPrompt:
    """The prompt that asks for these panels, in the words of ``KINDS[kind]``.

    Raises:
        ValueError: for more panels than the storybook has a word for.
    """
    if len(panels) not in COUNTS:
        raise ValueError(f"the storybook counts up to {max(COUNTS)} panels, {layout} has {len(panels)}")
    rows, columns = (int(n) for n in layout.split("x"))
    category, task, opening, theme = KINDS[kind]
    subject, style = character(panels[0]), panels[0].style
    marks = place_marks(rows, columns)
    head = f"{COUNTS[len(panels)]}-PANEL Images with a {layout} grid layout {opening} {subject}."
    shared = f"All images show {subject} in {style} style."
    texts = [f"{mark} {panel_text(panel)}" for mark, panel in zip(marks, panels, strict=True)]
    return StorybookPrompt(
        prompt=" ".join([head, shared, *texts]),
        theme=theme.format(who=subject, style=style),
        layout=layout,
        category=category,
        task_name=task,
        criteria=_criteria(panels[0], task),
        panels=tuple(panels),
    )


#: Different prompts of one layout. The kinds take turns, so they end with the poorest, which chooses shared traits and
#: one scene for all panels.
MOST = len(KINDS) * math.prod(len(VOCABULARY[trait]) for trait in (*SHARED_TRAITS, "scene"))


def validate_drawable(count: int, layout: str) -> None:
    """Find what the storybook cannot write, before it begins.

    Raises:
        DataError: for more prompts than there are, and for a layout without words.
    """
    if count > MOST:
        raise DataError(f"prompts.count={count}: the storybook has {MOST} different prompts of a layout; lower it")
    rows, columns = (int(n) for n in layout.split("x"))
    try:
        place_marks(rows, columns)
    except ValueError as error:
        raise DataError(f"prompts.layout={layout}: {error}") from None
    if rows * columns not in COUNTS:
        raise DataError(
            f"prompts.layout={layout}: the storybook counts up to {max(COUNTS)} panels, {layout} has {rows * columns}"
        )


def storybook_prompts(count: int, seed: int, layout: str = "2x2") -> list[StorybookPrompt]:
    """``count`` different prompts, the kinds in turn; a longer list begins with the shorter one.

    Raises:
        DataError: as :func:`validate_drawable`.
    """
    validate_drawable(count, layout)
    rng = random.Random(f"prompts-{seed}-{layout}")
    rows, columns = (int(n) for n in layout.split("x"))
    prompts: dict[str, StorybookPrompt] = {}
    while len(prompts) < count:
        kind, panels = random_set(len(prompts) % len(KINDS), rows * columns, rng)
        prompt = compose_storybook_prompt(panels, layout, kind)
        prompts.setdefault(prompt.idx, prompt)
    return list(prompts.values())


_WORDS = {
    trait: re.compile(r"\b(" + "|".join(w for w in words if w != "nothing") + r")\b")
    for trait, words in VOCABULARY.items()
}


@lru_cache(maxsize=8192)
def parse_panel(text: str) -> Panel:
    """The panel that a panel's sentence asks for (inverse of :func:`panel_text`).

    Raises:
        ValueError: naming the trait that the sentence does not name, or for which it names several words.
    """
    traits: dict[str, str] = {}
    for trait, pattern in _WORDS.items():
        words = list(dict.fromkeys(pattern.findall(text)))
        if len(words) > 1:
            raise ValueError(f"panel text names several words for {trait}, {' and '.join(words)}: {text!r}")
        if words:
            traits[trait] = words[0]
        elif trait == "accessory":
            traits[trait] = "nothing"
        else:
            raise ValueError(f"panel text names no {trait}: {text!r}")
    return Panel(**traits)  # type: ignore[arg-type]


def parse_storybook_prompt(prompt: str) -> list[Panel]:
    """The panels that a storybook prompt asks for, in reading order.

    Raises:
        ValueError: when the text marks no panel, or a panel's sentence leaves a trait open.
    """
    texts = re.split(r"\[[A-Z0-9-]+\](?:-\[[A-Z-]+\])?:", prompt)[1:]
    if not texts:
        raise ValueError(f"prompt marks no panel: {prompt[:80]!r}")
    return [parse_panel(text) for text in texts]


NAMES = {"species": "animal", "colour": "colour", "accessory": "accessory", "style": "style"}


def true_reasons(first: Panel, second: Panel) -> tuple[str, list[str]]:
    """("Yes" or "No", one to three reasons) for a pair of panels of one set."""
    differing = differing_traits(first, second)
    if not differing:
        return "Yes", [f"Both show {character(first)}.", f"Both have {first.style} style."]
    return "No", [_difference(trait, first, second) for trait in differing[:3]]


def _difference(trait: str, first: Panel, second: Panel) -> str:
    first_word, second_word = (str(getattr(panel, trait)) for panel in (first, second))
    return f"The {NAMES[trait]} differs: {first_word} and {second_word}."


def answer(label: str, reasons: list[str]) -> str:
    """The answer text: the label, then the reasons."""
    return " ".join([f"{label}.", *reasons])
