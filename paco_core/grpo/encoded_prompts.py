"""Encoded prompts of images and stories: a row per part, and the reference images of each part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from paco_core.data.records.records import PromptRecord, characters_of_panels, panel_texts
from paco_core.grpo.panel_references import panel_references
from paco_core.policies.base import Policy, Size
from paco_core.policies.encoded import Encoded

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.characters import Character
    from paco_core.policies.base import References


def texts_of(record: PromptRecord, predecessors: int) -> list[str]:
    """The texts of an image's parts: its prompt, or of a story (:class:`EncodedPrompts`) the prompt of each panel."""
    return panel_texts(record) if predecessors else [record.prompt]


@dataclass(frozen=True)
class EncodedPrompts:
    """Encoded prompts: a row for each part of each image, image after image.

    Attributes:
        first: row of each image's first part.
        predecessors: how many parts before it a part has as reference images, at most.
        characters: those that the part of each row names, if any record of a story has characters. Their images are
            reference images, too (:mod:`.panel_references`).
    """

    encoded: Encoded
    first: Sequence[int]
    predecessors: int = 0
    characters: Sequence[Sequence[Character]] = ()

    @classmethod
    def from_records(
        cls,
        policy: Policy,
        records: Sequence[PromptRecord],
        predecessors: int,
        max_sequence_length: int,
        guidance: float,
        references: Sequence[References] | None = None,
        sizes: Sequence[Sequence[Size]] = (),
    ) -> EncodedPrompts:
        """Encode the prompts of records; see :meth:`Policy.encode`."""
        texts = [texts_of(record, predecessors) for record in records]
        flat = [text for parts in texts for text in parts]
        encoded = policy.encode(flat, max_sequence_length, references, sizes, guidance=guidance)
        characters: list[list[Character]] = []
        if predecessors and any(record.characters for record in records):
            characters = [panel for record in records for panel in characters_of_panels(record)]
        return cls(encoded, starts([len(parts) for parts in texts])[:-1], predecessors, characters)

    def conditions(
        self, policy: Policy, rows: Sequence[int], part: int, panels: Sequence[Sequence[Image]], size: Size
    ) -> tuple[Encoded, list[int]]:
        """The conditions of one part of each image: encoded prompts with references, and the row of each image.

        Args:
            rows: of the images.
            panels: the finished parts of each image.
            size: of a part.
        """
        encoded_rows = [self.first[row] + part for row in rows]
        if not part and not self.characters:
            return self.encoded, encoded_rows
        cases = list(zip(encoded_rows, range(len(rows)), strict=True))
        if not part:  # images of one prompt share their first panel's references
            cases = list({row: (row, number) for row, number in cases}.values())
        texts = Encoded([self.encoded.rows[row] for row, _ in cases], self.encoded.device)
        most = policy.family_spec.references[1]
        references = [
            panel_references(
                self.characters[row] if self.characters else (), panels[number][:part], self.predecessors, most
            )
            for row, number in cases
        ]
        places = {row: place for place, (row, _) in enumerate(cases)}
        shared = [places[row] for row in encoded_rows] if not part else list(range(len(rows)))
        return policy.with_references(texts, references, size), shared


def starts(counts: Sequence[int]) -> list[int]:
    """The first place of each run of so many, and the number of all: (counts + 1,)."""
    return list(accumulate(counts, initial=0))
