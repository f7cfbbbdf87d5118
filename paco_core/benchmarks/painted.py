"""A painted picture: by which policy, before or after its training, for which prompt, from which noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paco_core.data.records.subfigures import cut

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord

BEFORE, AFTER = "before", "after"
SEPARATELY = "separately"  # before training, each panel as a picture of its own


@dataclass(frozen=True)
class Painted:
    """One picture: which policy state painted it (``when``), for which prompt, from which noise."""

    policy: str
    size: int
    when: str
    record: PromptRecord
    seed: int
    image: Image

    @property
    def panels(self) -> list[Image]:
        return cut(self.image, self.record.layout)
