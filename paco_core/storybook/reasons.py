"""True reasons why two panels are consistent or not: what a perfect annotator would write."""

from __future__ import annotations

from paco_core.storybook.prompts import character
from paco_core.storybook.world import Panel, differing_traits

NAMES = {"species": "animal", "colour": "colour", "accessory": "accessory", "style": "style"}


def true_reasons(first: Panel, second: Panel) -> tuple[str, list[str]]:
    """("Yes" or "No", one to three reasons) for a pair of panels of one set."""
    differing = differing_traits(first, second)
    if not differing:
        return "Yes", [f"Both show {character(first)}.", f"Both have {first.style} style."]
    return "No", [_difference(trait, first, second) for trait in differing[:3]]


def _difference(trait: str, first: Panel, second: Panel) -> str:
    one, two = (str(getattr(panel, trait)) for panel in (first, second))
    return f"The {NAMES[trait]} differs: {one} and {two}."


def answer(label: str, reasons: list[str]) -> str:
    """The answer text: the label, then the reasons."""
    return " ".join([f"{label}.", *reasons])
