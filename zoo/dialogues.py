"""Training dialogues of the zoo's vision-language model: questions about one trait, before any reward training.

The model learns to describe one image, and to compare two images in one trait at a time, also with the sentences of the
reward instructions. It also learns whether an edit changed one trait as instructed. The dialogues never contain the
overall consistency question or the two questions about edits, because the reward adapter has to learn their answers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from paco_core.storybook.editing import Edit, change_trait
from paco_core.storybook.prompts import panel_text
from paco_core.storybook.world import VOCABULARY, Panel

NOUNS = {
    "species": "animal",
    "colour": "colour",
    "accessory": "accessory",
    "size": "size",
    "scene": "scene",
    "style": "style",
}

COMPARISONS = (
    "Is the {noun} the same in both pictures?",
    "Do the two images show the same {noun}?",
    "Do both pictures share the {noun}?",
    "Do the two images match in {noun}?",
)
SHAPED_COMPARISONS = (
    'Given two subfigures generated based on the theme: "{theme}", do the two images show the same {noun}? '
    'Answer "Yes" and "No" first, and then provide detailed reasons.',
    'Do the two images show the same {noun}? Answer "Yes" and "No" first, and then provide detailed reasons.',
    'Given two subfigures generated based on the theme: "{theme}", do the two images agree in {noun}? '
    'Answer "Yes" and "No" first, and then provide detailed reasons.',
    "Do images meet the following criteria? The {noun} is the same in both images. "
    "Please answer Yes or No first, then provide detailed reasons.",
)
#: About a picture before and after an edit, in the opening words of the editing instructions.
EDIT_OPENING = "Compare the edited image (second) with the original image (first). Instruction: '{instruction}'. "
EDIT_CLOSING = " Answer 'Yes' or 'No' first, then provide detailed reasons."
EDIT_HEEDED = "Does the edited image show the {noun} that the instruction asks for?"
EDIT_KEPT = (
    "Do the two images show the same {noun}?",
    "Does the edited image keep the {noun} of the original?",
    "Is the {noun} as it was in the original image?",
)
CLAIM = "Do images meet the following criteria? {claim} Please answer Yes or No first, then provide detailed reasons."

#: The reward instructions, whose words get tokens. Only `OVERALL` is used as a question, and only for measurements.
OVERALL = (
    'Given two subfigures generated based on the theme: "{theme}", do the two images maintain consistency in '
    'terms of style, logic and identity? Answer "Yes" and "No" first, and then provide detailed reasons.'
)
INSTRUCTIONS = (
    OVERALL,
    "Do the two images maintain consistency in terms of style, logic and identity? "
    'Answer "Yes" and "No" first, and then provide detailed reasons.',
    "Do images meet the following criteria? {criterion} Please answer Yes or No first, then provide detailed reasons.",
    "Compare the edited image (second) with the original image (first). Instruction: '{instruction}'. "
    "Except for the parts that are intentionally changed according to the instruction, does the edited image "
    "remain consistent with the original in style, logic, and identity? "
    "Answer 'Yes' or 'No' first, then provide detailed reasons.",
    "Does the edited image accurately follow this instruction? "
    "Answer 'Yes' or 'No' first, then provide detailed reasons.",
)


@dataclass(frozen=True)
class Turn:
    """A question and its true answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class Dialogue:
    """Turns about one or two images. The images come before the first question."""

    panels: tuple[Panel, ...]
    turns: tuple[Turn, ...]


def comparison(first: Panel, second: Panel, trait: str, question: str) -> Turn:
    """Turn about one trait of two panels; ``question`` has a place for ``{noun}``."""
    first_word, second_word = (str(getattr(panel, trait)) for panel in (first, second))
    noun = NOUNS[trait]
    if first_word == second_word:
        return Turn(question.replace("{noun}", noun), f"Yes. The {noun} is the same: {first_word}.")
    return Turn(question.replace("{noun}", noun), f"No. The {noun} differs: {first_word} and {second_word}.")


def one_picture(panel: Panel, rng: random.Random) -> Dialogue:
    """A description, or three questions about three traits of one panel."""
    if rng.random() < 0.3:
        return Dialogue((panel,), (Turn("Describe the picture.", f"It shows {panel_text(panel)}"),))
    turns = []
    for trait in rng.sample(list(VOCABULARY), 3):
        truth = str(getattr(panel, trait))
        if rng.random() < 0.4:
            turns.append(Turn(f"What is the {NOUNS[trait]}?", f"It is {truth}."))
            continue
        claimed = truth if rng.random() < 0.5 else rng.choice(VOCABULARY[trait])
        claim = f"The {NOUNS[trait]} is {claimed}."
        question = CLAIM.replace("{claim}", claim) if rng.random() < 0.2 else f"Is the {NOUNS[trait]} {claimed}?"
        turns.append(Turn(question, f"{'Yes' if claimed == truth else 'No'}. It is {truth}."))
    return Dialogue((panel,), tuple(turns))


def second_panel(first: Panel, rng: random.Random, share: float) -> Panel:
    """A panel that agrees with ``first`` in each trait with probability ``share``."""
    second = first
    for trait, words in VOCABULARY.items():
        if rng.random() >= share:
            other = rng.choice([word for word in words if word != getattr(first, trait)])
            second = second.with_trait(trait, other)
    return second


def two_pictures(
    first: Panel, second: Panel, theme: str, rng: random.Random, *, traits: Sequence[str], shaped: bool, bare: bool
) -> Dialogue:
    """Comparisons of two panels in up to three of ``traits``.

    ``shaped``: at most two, in the wording of an instruction. ``bare``: the answers are only "Yes." and "No.".
    """
    turns = []
    for trait in rng.sample(traits, min(len(traits), 2 if shaped else 3)):
        question = rng.choice(SHAPED_COMPARISONS if shaped else COMPARISONS)
        turn = comparison(first, second, trait, question.replace("{theme}", theme))
        turns.append(Turn(turn.question, turn.answer.split(" ")[0]) if bare else turn)
    return Dialogue((first, second), tuple(turns))


def edited_panel(first: Panel, rng: random.Random) -> Edit:
    """An edit of one trait of ``first``: made, not made, or made wrong. Every third edit also changes another trait."""
    trait = rng.choice(list(VOCABULARY))
    target, wrong = change_trait(first, trait, rng), change_trait(first, trait, rng)
    after = rng.choice([target, target, first, wrong])
    if rng.random() < 1 / 3:
        after = change_trait(after, rng.choice([other for other in VOCABULARY if other != trait]), rng)
    return Edit(first, after, trait, str(getattr(target, trait)))


def about_an_edit(edit: Edit, rng: random.Random, *, bare: bool) -> Dialogue:
    """Questions about an edit: was the requested trait changed as instructed, and are two other traits unchanged?"""
    word, noun = str(getattr(edit.after, edit.trait)), NOUNS[edit.trait]
    opening = EDIT_OPENING.replace("{instruction}", edit.instruction)
    heeded = f"Yes. The {noun} is {word}." if edit.followed else f"No. The {noun} is {word}, not {edit.requested_word}."
    turns = [Turn(opening + EDIT_HEEDED.replace("{noun}", noun) + EDIT_CLOSING, heeded)]
    for other in rng.sample([trait for trait in VOCABULARY if trait != edit.trait], 2):
        question = opening + rng.choice(EDIT_KEPT) + EDIT_CLOSING
        turns.append(comparison(edit.before, edit.after, other, question))
    rng.shuffle(turns)
    if bare:
        turns = [Turn(turn.question, turn.answer.split(" ")[0]) for turn in turns]
    return Dialogue((edit.before, edit.after), tuple(turns))
