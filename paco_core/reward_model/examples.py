"""Training examples of the pairwise reward model: two images, an instruction, and the target answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from paco_core.data.pairs.answers import leading_verdict, normalize_answer, validation_error
from paco_core.io.files import DataError, read_table
from paco_core.reward_model.instructions import pair_question, render_instruction
from paco_core.reward_model.yes_probability import NO, YES, PairQuery

if TYPE_CHECKING:
    from PIL import Image

COLUMNS = ("pair_id", "theme", "first", "second", "label", "answer")
EDIT_TEMPLATE = "edit_consistency"  # default of editing pairs
EDIT_TEMPLATES = (EDIT_TEMPLATE, "edit_following")
CHARACTER_TEMPLATE = "character"


@dataclass(frozen=True)
class Example:
    """A pair and its answer, which begins with "Yes." or "No.". The first trained token is the scored token."""

    id: str
    images: tuple[Image.Image, Image.Image]
    instruction: str
    answer: str
    ordered: bool = False  # original and edit, or character and panel; otherwise the order has no meaning

    def __post_init__(self) -> None:
        if not leading_verdict(self.answer) or normalize_answer(self.answer) != self.answer.rstrip():
            raise DataError(f"pair {self.id}: its answer must begin with Yes. or No., but it is {self.answer[:40]!r}")

    @property
    def consistent(self) -> bool:
        return leading_verdict(self.answer) == YES

    @property
    def query(self) -> PairQuery:
        return PairQuery(self.images[0], self.images[1], self.instruction)

    @property
    def swapped(self) -> PairQuery:
        return PairQuery(self.images[1], self.images[0], self.instruction)


def read_examples(
    table: Path,
    panel: Callable[[str], Image.Image],
    template: str,
    answers: Literal["reasons", "decision"] = "reasons",
    *,
    none_allowed: bool = False,
) -> list[Example]:
    """Examples of a table of labelled pairs with answers (columns :data:`COLUMNS`).

    Args:
        panel: returns the image of a panel reference.
        template: name of the instruction template. ``theme`` reads the column ``theme``, and an empty theme uses the
            template ``plain``. An editing pair has an ``instruction``, and its column ``question`` contains one of
            :data:`EDIT_TEMPLATES` (default: the first). A character pair has a ``character``, the name in
            :data:`CHARACTER_TEMPLATE`.
        answers: "reasons" = the answers of the table, "decision" = "Yes." or "No." only.
        none_allowed: whether the table may be empty, for example for published weights.

    Raises:
        DataError: with the table and the pair, if it cannot be read, a column is missing, a label is neither Yes nor
            No, an answer contradicts its label, or an image is missing.
    """
    frame = read_table(table, require=COLUMNS)
    frame = frame.reindex(columns=[*COLUMNS, "instruction", "question", "character"])
    load = cache(panel)  # images of several pairs are in memory once
    examples = []
    for pair_id, theme, first, second, label, answer, edit, edit_template, name in frame.itertuples(index=False):
        if label not in (YES, NO):
            raise DataError(f"{table}: pair {pair_id}: label {label!r} is neither Yes nor No")
        if not isinstance(answer, str):
            raise DataError(f"{table}: pair {pair_id}: answer {answer!r} is not a string")
        if cause := validation_error(answer, label):
            raise DataError(f"{table}: pair {pair_id}: label {label} but its answer is {answer[:40]!r} ({cause})")
        try:
            instruction = _instruction(template, theme, edit, edit_template, name)
            images = (load(first), load(second))
        except DataError as error:
            raise DataError(f"{table}: pair {pair_id}: {error}") from None
        text = f"{label}." if answers == "decision" else normalize_answer(answer)
        examples.append(
            Example(str(pair_id), images, instruction, text, ordered=isinstance(edit, str) or isinstance(name, str))
        )
    if not examples and not none_allowed:
        raise DataError(
            f"{table}: contains no pairs, but reward.source 'train' needs some: rank grids (grids.seeds, "
            "annotations.source), set a folder of pairs (pairs.imported), or use published weights (reward.source: "
            "merged or adapter)"
        )
    return examples


def _instruction(template: str, theme: object, edit: object, edit_template: object, name: object) -> str:
    """The instruction of a row: about a character, an edit, or a theme."""
    if isinstance(name, str):
        return render_instruction(CHARACTER_TEMPLATE, name=name)
    if isinstance(edit, str):
        question = edit_template if isinstance(edit_template, str) else EDIT_TEMPLATE
        if question not in EDIT_TEMPLATES:
            raise DataError(f"question {question!r} is not one of {', '.join(EDIT_TEMPLATES)}")
        return render_instruction(question, instruction=edit)
    return pair_question(template, theme) if isinstance(theme, str) else render_instruction(template)


def validate_labels(examples: Sequence[Example], name: str) -> None:
    """Validate that a training set contains both answers.

    Raises:
        DataError: if it contains one answer only.
    """
    yes = sum(example.consistent for example in examples)
    if yes in (0, len(examples)):
        raise DataError(f"{name}: {yes} pairs say Yes and {len(examples) - yes} say No; both are needed")
