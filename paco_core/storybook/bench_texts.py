"""Questions of T2IS-Bench about storybook sets, in the words of the small vision language model of the zoo.

This model is trained on questions about one trait at a time, so the texts about panels are questions, too. The
dimension Logic has no questions, because the model knows none about the order of panels.
"""

from __future__ import annotations

from paco_core.storybook.world import SHARED_TRAITS, VOCABULARY, Panel

NOUNS = {"species": "animal"}
ASPECTS = {"species": "Entity", "scene": "Relation"}  # all other traits are attributes


def trait_criteria() -> dict[str, list[str]]:
    """Of every set: each shared trait is the same in two panels, by dimension."""
    texts: dict[str, list[str]] = {}
    for trait, dimension in SHARED_TRAITS.items():
        texts.setdefault(dimension, []).append(f"The {NOUNS.get(trait, trait)} is the same in both images.")
    return texts


def trait_questions(panel: Panel) -> dict[str, list[str]]:
    """Whether a panel shows what it should, one question a trait, by aspect."""
    texts: dict[str, list[str]] = {}
    for trait in VOCABULARY:
        question = f"Is the {NOUNS.get(trait, trait)} {getattr(panel, trait)}?"
        texts.setdefault(ASPECTS.get(trait, "Attribute"), []).append(question)
    return texts
