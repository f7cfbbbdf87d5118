"""A painted picture: by which policy, before or after its training, for which prompt, from which noise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paco_core.data.records.panels import cut

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord
    from paco_core.policies.cuts import Cut

BEFORE, AFTER = "before", "after"
SEPARATELY = "separately"  # before training, each panel as a picture of its own
TOKENS_A_PASS = 8192  # image and text tokens of one forward; batches shrink as pictures grow


def pictures_a_pass(size: tuple[int, int], *, references: int, words: int) -> int:
    """How many pictures of ``size`` a benchmark paints at once, beside so many reference pictures each."""
    tokens = size[0] * size[1] // 256 * (1 + references) + words
    return max(1, TOKENS_A_PASS // tokens)


@dataclass(frozen=True)
class Painted:
    """One picture: which policy state painted it (``when``), for which prompt, from which noise.

    Attributes:
        lost: what the policy did not read of the prompt; None where it read all.
    """

    policy: str
    size: int
    when: str
    record: PromptRecord
    seed: int
    image: Image
    lost: Cut | None = None

    @property
    def panels(self) -> list[Image]:
        return cut(self.image, self.record.layout)


def cuts_of(painted: Iterable[Painted]) -> dict[str, Cut]:
    """What was cut off prompts, by policy and id: policies read prompts of different lengths."""
    return {f"{p.policy} {p.record.idx}": p.lost for p in painted if p.lost is not None}
