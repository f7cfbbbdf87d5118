"""Likeness of panels to their characters' reference pictures, and to each other, by a CLIP.

As the public evaluation of ViStoryBench averages them, with two differences: its character measures crop each character
out of a panel first (GroundingDINO) and know faces, its style measures embed by CSD; here one CLIP sees whole pictures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import ImageOps

from paco_core.data.records.story_records import Story, story_of
from paco_core.io.pictures import read_image

if TYPE_CHECKING:
    from paco_core.benchmarks.consistency_rank import Embedder
    from paco_core.data.records.records import PromptRecord
    from paco_core.rewards.base import RewardBatch

TEMPERATURE = 0.01  # of the choice between a reference and its mirror image, as published


class SimilarityByClip:
    """Columns of a story, NaN where it has nothing to compare:

    ``identity_cross``: of a character's panels and its reference pictures; ``identity_self``: of a character's panels
    among each other; ``copy_paste``: how much more these panels are like the first reference than like its mirror
    image, 0.5 = no more; each a mean over characters. ``style_cross``: of a panel and the first reference of each of
    its characters, or of the story's first character where it has none; ``style_self``: of all panels among each other.

    Args:
        folder: where the paths of the reference pictures begin.
    """

    columns: tuple[str, ...] = ("identity_cross", "identity_self", "copy_paste", "style_cross", "style_self")

    def __init__(self, clip: Embedder, folder: Path) -> None:
        self.clip, self.folder = clip, folder
        self.causes: Counter[str] = Counter()

    def count(self, record: PromptRecord) -> int:  # noqa: ARG002
        """No question is asked."""
        return 0

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The columns, (N,) each.

        Raises:
            DataError: for a record that is no story, or a reference picture that is missing or damaged.
        """
        rows = [
            self._story(story_of(record), self.clip.embed(panels))
            for record, panels in zip(batch.records, batch.panels, strict=True)
        ]
        return dict(zip(self.columns, np.array(rows, dtype=np.float64).T, strict=True))

    def _story(self, story: Story, panels: np.ndarray) -> tuple[float, ...]:
        references = {key: self._references(one.pictures) for key, one in story.characters.items() if one.pictures}
        cross, alike, copied = list[float](), list[float](), list[float]()
        for key in story.characters:
            own = panels[[number for number, shot in enumerate(story.shots) if key in shot.characters]]
            if len(own) > 1:
                alike.append(_among(own))
            if len(own) and key in references:
                pictures, mirrored = references[key]
                cross.append(float((own @ pictures.T).mean()))
                towards = (own @ np.stack([pictures[0], mirrored]).T) / TEMPERATURE
                copied.append(float((1 / (1 + np.exp(towards[:, 1] - towards[:, 0]))).mean()))
        style = []
        for panel, shot in zip(panels, story.shots, strict=True):
            named = [key for key in shot.characters if key in references] or list(references)[:1]
            if named:
                style.append(float(np.mean([panel @ references[key][0][0] for key in named])))
        return _mean(cross), _mean(alike), _mean(copied), _mean(style), _among(panels)

    def _references(self, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Embeddings of a character's pictures, (N, width), and of the first one mirrored, (width,)."""
        pictures = [read_image(self.folder / name) for name in names]
        rows = self.clip.embed([*pictures, ImageOps.mirror(pictures[0])])
        return rows[:-1], rows[-1]


def _among(rows: np.ndarray) -> float:
    """Mean cosine over unordered pairs; NaN for a single row."""
    return _mean([float(one @ other) for one, other in combinations(rows, 2)])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else np.nan
