"""Painting a picture in training: at once, or panel by panel, each with panels before it as reference pictures.

The latter is a story. A picture that is painted at once is one of a single part, so that both are painted by
:func:`paint_page`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from PIL import Image as pil

from paco_core.data.records import prompt_text
from paco_core.grpo.rollout import Sampling, Trajectory, rollout
from paco_core.grpo.sizes import Canvas
from paco_core.policies.base import NoiseKey, Policy, Size
from paco_core.policies.encoded import Encoded

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord
    from paco_core.policies.base import References


def panel_texts(record: PromptRecord) -> list[str]:
    """What each panel is painted from on its own: what all panels share, then the panel's own text."""
    parts = prompt_text.parse(record.prompt, record.layout)
    return [f"{parts.shared} {panel.text}".strip() for panel in parts.panels]


def texts_of(record: PromptRecord, predecessors: int) -> list[str]:
    """What a picture is painted from: its prompt, or of a story (:class:`EncodedPrompts`) the text of each panel."""
    return panel_texts(record) if predecessors else [record.prompt]


@dataclass(frozen=True)
class EncodedPrompts:
    """Encoded prompts: a row for each part of each picture, picture after picture.

    Attributes:
        first: row of each picture's first part.
        predecessors: how many parts before it a part has as reference pictures, at most.
    """

    encoded: Encoded
    first: Sequence[int]
    predecessors: int = 0

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
        flat = [text for own in texts for text in own]
        encoded = policy.encode(flat, max_sequence_length, references, sizes, guidance=guidance)
        return cls(encoded, starts([len(own) for own in texts])[:-1], predecessors)

    def conditions(
        self, policy: Policy, rows: Sequence[int], part: int, painted: Sequence[Sequence[Image]], size: Size
    ) -> tuple[Encoded, list[int]]:
        """What a part of each picture is painted from, and the row of each.

        Args:
            rows: pictures.
            painted: the parts of each that are painted already.
            size: of a part.
        """
        own = [self.first[row] + part for row in rows]
        if not part:
            return self.encoded, own
        taken = Encoded([self.encoded.rows[row] for row in own], self.encoded.device)
        shown = [parts[:part][-self.predecessors :] for parts in painted]
        return policy.with_references(taken, shown, size), list(range(len(rows)))


def starts(counts: Sequence[int]) -> list[int]:
    """The first of so many things each, and the number of all, (counts + 1,)."""
    found = [0]
    for count in counts:
        found.append(found[-1] + count)
    return found


def part_key(key: NoiseKey, part: int, page: Canvas) -> NoiseKey:
    """Names the noise of a part: that of a prompt ``<id>-<part>``."""
    return key if page.parts == 1 else replace(key, prompt_id=f"{key.prompt_id}-{part}")


@dataclass(frozen=True)
class Part:
    """One part of N pictures: what it was painted from, a row of ``encoded`` each, how, and what it shows."""

    encoded: Encoded
    rows: Sequence[int]
    trajectory: Trajectory
    pictures: list[Image]


def paint_page(
    policy: Policy,
    prompts: EncodedPrompts,
    rows: Sequence[int],
    keys: Sequence[NoiseKey],
    sampling: Sampling,
    page: Canvas,
) -> tuple[list[Image], list[Part]]:
    """Paint pictures of one page, part by part.

    Args:
        rows: pictures of ``prompts``.
        keys: names the noise of each.
        sampling: of a part.
    """
    painted: list[list[Image]] = [[] for _ in rows]
    parts: list[Part] = []
    for number in range(page.parts):
        encoded, own = prompts.conditions(policy, rows, number, painted, page.part_size)
        named = [part_key(key, number, page) for key in keys]
        done = rollout(policy, encoded, own, named, sampling)
        parts.append(Part(encoded, own, done, policy.decode(done.latents, page.part_size)))
        for pictures, picture in zip(painted, parts[-1].pictures, strict=True):
            pictures.append(picture)
    return [composed(pictures, page.grid) for pictures in painted], parts


def composed(parts: Sequence[Image], grid: tuple[int, int]) -> Image:
    """A picture from its parts, all of one size, in reading order."""
    if len(parts) == 1:
        return parts[0]
    (rows, columns), (width, height) = grid, parts[0].size
    page = pil.new("RGB", (columns * width, rows * height))
    for number, part in enumerate(parts):
        page.paste(part, (number % columns * width, number // columns * height))
    return page
