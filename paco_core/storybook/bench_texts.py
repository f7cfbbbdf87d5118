"""What T2IS-Bench asks about the storybook's sets, in words that the embedded vision language model knows.

It was taught questions about one trait at a time, so that texts about panels are questions, too. The dimension Logic
has none: no question that it knows is about the order of panels.
"""

from __future__ import annotations

from paco_core.storybook.world import SHARED_TRAITS, VOCABULARY, Panel

NOUNS = {"species": "animal"}
ASPECTS = {"species": "Entity", "scene": "Relation"}  # all other traits are attributes


def criteria() -> dict[str, list[str]]:
    """Of every set: each shared trait is the same in two panels, by dimension."""
    found: dict[str, list[str]] = {}
    for trait, dimension in SHARED_TRAITS.items():
        found.setdefault(dimension, []).append(f"The {NOUNS.get(trait, trait)} is the same in both images.")
    return found


def questions(panel: Panel) -> dict[str, list[str]]:
    """Whether a panel shows what it should, one question a trait, by aspect."""
    found: dict[str, list[str]] = {}
    for trait in VOCABULARY:
        question = f"Is the {NOUNS.get(trait, trait)} {getattr(panel, trait)}?"
        found.setdefault(ASPECTS.get(trait, "Attribute"), []).append(question)
    return found
