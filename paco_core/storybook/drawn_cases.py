"""Drawn cases: pairs of panels without a label, and comparisons of edits, where no data are at hand.

Nothing is trained on the comparisons: they are drawn for the benchmark, from a separate seed. They fill six of the
thirteen task types of EditReward-Bench (EditScore, arXiv 2509.23909) and all three of its dimensions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from PIL.Image import Image

from paco_core.storybook.drawing import draw
from paco_core.storybook.editing import Edit
from paco_core.storybook.prompts import KINDS, character, random_set
from paco_core.storybook.world import VOCABULARY, Panel, random_panel

if TYPE_CHECKING:
    from PIL.Image import Image


def unlabelled_pairs(count: int, side: int, seed: int = 0) -> list[tuple[Image, Image, str]]:
    """(first, second, theme) of ``count`` pairs, ``side`` x ``side`` pixels, the same for equal arguments.

    In turns both panels are of one set, and the second is of another one.
    """
    pairs = []
    for number in range(count):
        rng = random.Random(f"drawn-pairs-{seed}-{number}")
        kind, (first, second) = random_set(rng.randrange(len(KINDS)), 2, rng)
        theme = KINDS[kind][3].format(who=character(first), style=first.style)
        if number % 2:
            second = random_panel(rng)
        pairs.append((draw(first, side, rng), draw(second, side, rng), theme))
    return pairs


EditDimension = Literal["prompt_following", "consistency", "overall"]
DIMENSIONS: tuple[EditDimension, ...] = ("prompt_following", "consistency", "overall")
#: Task type -> the trait that it changes.
TASKS: dict[str, str] = {
    "color_alter": "colour",
    "subject-replace": "species",
    "subject-add": "accessory",
    "subject-remove": "accessory",
    "background_change": "scene",
    "style_change": "style",
}
UNEDITED_TRAITS = (
    "species",
    "colour",
    "accessory",
    "scene",
    "style",
)  # what an edit must not touch, where it is not asked to


@dataclass(frozen=True)
class EditComparison:
    """One comparison; ``better`` and ``worse`` are what the two edited pictures show."""

    id: str
    task_type: str
    dimension: EditDimension
    instruction: str
    before: Panel
    better: Panel
    worse: Panel
    motion: int  # seed of where the character stands, the same in all three pictures

    def picture(self, panel: Panel, size: int) -> Image:
        return draw(panel, size, random.Random(self.motion))


def edit_comparisons(count: int, seed: int) -> list[EditComparison]:
    """``count`` comparisons, task types and dimensions in turn; equal seeds give equal ones."""
    rng = random.Random(f"edits|{seed}")
    cells = [(task, dimension) for dimension in DIMENSIONS for task in TASKS]
    return [_edit(number, *cells[number % len(cells)], rng) for number in range(count)]


def _edit(number: int, task: str, dimension: EditDimension, rng: random.Random) -> EditComparison:
    trait = TASKS[task]
    before = random_panel(rng)
    if task == "subject-add":
        before = before.with_trait("accessory", "nothing")
    elif task == "subject-remove":
        before = before.with_trait("accessory", rng.choice(VOCABULARY["accessory"][1:]))
    word = "nothing" if task == "subject-remove" else _other(trait, before, rng)
    better = before.with_trait(trait, word)
    follows = dimension == "consistency" or (dimension == "overall" and rng.random() < 0.5)
    worse = _altered(better, trait, rng) if follows else _unheeded(before, trait, word, rng)
    instruction = Edit(before, better, trait).instruction
    return EditComparison(f"{number:04d}", task, dimension, instruction, before, better, worse, rng.randrange(1 << 30))


def _other(trait: str, panel: Panel, rng: random.Random, *also_not: str) -> str:
    """A word of the trait that the panel does not show."""
    return rng.choice([w for w in VOCABULARY[trait] if w not in (getattr(panel, trait), *also_not)])


def _altered(better: Panel, trait: str, rng: random.Random) -> Panel:
    """The edit was made, and something else that nobody asked for."""
    other = rng.choice([name for name in UNEDITED_TRAITS if name != trait])
    return better.with_trait(other, _other(other, better, rng))


def _unheeded(before: Panel, trait: str, word: str, rng: random.Random) -> Panel:
    """The edit was not made, or to another word than was asked for."""
    if rng.random() < 0.5:
        return before
    return before.with_trait(trait, _other(trait, before, rng, word))
