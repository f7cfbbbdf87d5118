"""Character pairs: an image of a character and a panel, and whether the panel is a new picture of this character.

A case is a panel, a character and all images of this character. There is one pair per image. The panels of the negative
kinds show another character, a pasted image of the character (``copy``), the other character of the story (``swapped``)
or no character (``absent``). A copy of one image is a new picture in comparison with the other images, so only one of
its pairs has the label No.

Cases are drawn in the storybook world, or built from a file of generated stories (:mod:`.character_stories`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import pandas as pd

from paco_core.config.params_characters import CharacterKind, NegativeKind
from paco_core.data.pairs.answers import leading_verdict
from paco_core.data.pairs.pairs import Pair, split_units
from paco_core.data.pairs.pictures import PairPictures
from paco_core.io.files import digest, read_table
from paco_core.io.rejected import Rejected
from paco_core.storybook.characters import random_case

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import CharacterPairsParams

POSITIVE: CharacterKind = "positive"
NEGATIVES: tuple[NegativeKind, ...] = get_args(NegativeKind)
QUESTION = "character"  # name of the instruction template
CHARACTERS_SHARD = "characters"  # folder of the pictures, below data/pairs
HELD_OUT_CHARACTERS = "characters.parquet"  # held-out cases, below data/pairs


class HeldOutCase(NamedTuple):
    """A case that no reward model is trained on; ``references`` and ``panel`` are panel references."""

    case_id: str
    prompt_id: str
    character: str
    references: list[str]
    panel: str
    kind: str


@dataclass
class CharacterPairs:
    """Character pairs, their cases and pictures, and the rejected rows by place and cause."""

    pairs: list[Pair] = field(default_factory=list)
    cases: list[HeldOutCase] = field(default_factory=list)
    pictures: PairPictures = field(default_factory=PairPictures)
    rejected: Rejected = field(default_factory=Rejected)
    _ids: set[str] = field(default_factory=set)

    def add(
        self,
        name: str,
        images: Sequence[Image],
        panel: Image,
        kind: CharacterKind,
        answers: Sequence[str],
        unit: str,
        *,
        written: bool = True,
    ) -> bool:
        """Add a case and one pair per image of the character; returns False if the case exists already.

        Args:
            name: name of the character.
            answers: for each image "Yes" or "No", and the reasons.
            unit: name of what a split never divides.
            written: whether the answers contain reasons. If not, the stage ``cot_labels`` writes them.
        """
        prompt_id = character_id(unit)
        second = self.pictures.add_panel(panel, prompt_id)
        references = [self.pictures.add_panel(image, prompt_id) for image in images]
        case_id = digest([name, references, second, QUESTION], 16)
        if case_id in self._ids:
            return False
        self._ids.add(case_id)
        self.cases.append(HeldOutCase(case_id, prompt_id, name, references, second, kind))
        for first, answer in zip(references, answers, strict=True):
            pair_id = digest([name, first, second, QUESTION], 16)
            if pair_id in self._ids:
                continue
            self._ids.add(pair_id)
            self.pairs.append(
                Pair(
                    pair_id, prompt_id, first, second, leading_verdict(answer), theme="",
                    answer=answer if written else None, question=QUESTION,
                    character=name, kind=kind, references=len(references),
                )
            )  # fmt: skip
        return True

    def hold_out(self, share: float, seed: int) -> list[HeldOutCase]:
        """Remove a share of the characters from the pairs, and return their cases.

        Raises:
            DataError: if the share would hold out all characters although it is below 1.
        """
        units, _ = split_units({case.prompt_id for case in self.cases}, share, f"{seed}|characters", "benchmark")
        self.pairs = [pair for pair in self.pairs if pair.prompt_id not in units]
        return [case for case in self.cases if case.prompt_id in units]


def kind_counts(total: int, shares: Mapping[NegativeKind, float]) -> dict[CharacterKind, int]:
    """The number of cases of each kind: the rounded share of each negative kind; the others are positive."""
    counts: dict[CharacterKind, int] = {POSITIVE: 0}
    counts |= {kind: round(shares.get(kind, 0.0) * total) for kind in NEGATIVES}
    counts[POSITIVE] = total - sum(counts.values())
    return counts


def character_id(unit: str) -> str:
    """The prompt id of all cases of a unit, which a split never divides."""
    return f"character-{digest(unit)}"


def draw_cases(
    params: CharacterPairsParams, *, prompt_ids: Set[str] | None = None, stream: str = "characters"
) -> CharacterPairs:
    """Draw cases in the storybook world. Within each kind, the numbers of references alternate.

    Args:
        prompt_ids: of the characters to draw. None draws all characters.
        stream: name of the random numbers: another name with the same seed draws other cases.
    """
    characters, attempt = CharacterPairs(), 0
    for kind, count in kind_counts(params.count, params.shares).items():
        num_cases = 0
        while num_cases < count:
            references = params.references[num_cases % len(params.references)]
            case = random_case(kind, references, random.Random(f"{stream}-{params.seed}-{attempt}"))
            if prompt_ids is None or character_id(case.identity) in prompt_ids:
                num_cases += characters.add(case.name, *case.draw(params.size), kind, case.answers(), case.identity)
            attempt += 1
    return characters


def held_out_table(cases: Sequence[HeldOutCase]) -> pd.DataFrame:
    """The held-out cases as a table."""
    return pd.DataFrame(cases, columns=list(HeldOutCase._fields))


def read_held_out_cases(folder: Path) -> list[HeldOutCase]:
    """The held-out cases of ``data/pairs``; empty if there is no file, because the project has no character pairs.

    Raises:
        DataError: if the file is damaged, or lacks a column.
    """
    file = folder / HELD_OUT_CHARACTERS
    if not file.is_file():
        return []
    rows = read_table(file, require=HeldOutCase._fields)[list(HeldOutCase._fields)].itertuples(index=False)
    return [
        HeldOutCase(str(case_id), str(prompt_id), str(name), list(map(str, references)), str(panel), str(kind))
        for case_id, prompt_id, name, references, panel, kind in rows
    ]
