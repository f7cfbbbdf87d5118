"""Measures of an adapter's images, per prompt: reward model, CLIP, and pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from paco_core.data.image_measures import brightness, panel_diversity, thumbnail_distances, thumbnails
from paco_core.data.records.panels import split_grid
from paco_core.grading.prompts import panel_prompts
from paco_core.grpo.hacking import largest_grid_score
from paco_core.grpo.image_alarm import NEAR_COPY
from paco_core.io.files import DataError
from paco_core.io.pictures import list_pictures, picture_digests, read_image
from paco_core.io.progress import Progress
from paco_core.reward_model.instructions import question
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.serving.cache import ScoreCache, query_key

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.api.judge_model import LocalModel, RemoteModel
    from paco_core.data.records.records import PromptRecord
    from paco_core.grading.images import ImageFolder
    from paco_core.models.open_clip import OpenClip
    from paco_core.reward_model.scorer import Scorer
    from paco_core.serving.client import RewardClient

IDENTITY, CONSISTENCY, TEXT = "identity", "consistency", "text_following"
DIVERSITY, COPIES, BRIGHTNESS, GRID = "diversity", "near_copies", "brightness", "grid_score"
#: Measures with a value per prompt, in the order of the table; the grid score is one number per adapter.
PER_PROMPT = (IDENTITY, CONSISTENCY, TEXT, DIVERSITY, COPIES, BRIGHTNESS)
SUBJECT_IMAGES = 4  # images of the subject that each generated image is compared with by the reward model


@dataclass
class CachedScorer:
    """A reward model whose scores are cached in a file. It is loaded when the first score is missing."""

    model: LocalModel | RemoteModel
    cache: ScoreCache
    causes: dict[str, int] = field(default_factory=dict)
    _scorer: Scorer | RewardClient | None = None

    def __call__(self, queries: Sequence[PairQuery], advance: Callable[[int], None]) -> np.ndarray:
        """Scores (queries,) float64, NaN where the model has none.

        Args:
            advance: is called with the number of queries of each batch.
        """
        digests = picture_digests([picture for query in queries for picture in query.pictures])
        pairs = zip(queries, digests[::2], digests[1::2], strict=True)
        keys = [query_key(self.model.identity, "grade", query.instruction, *pair) for query, *pair in pairs]
        values = self.cache.get(keys)
        missing = list({key: query for key, query in zip(keys, queries, strict=True) if key not in values}.items())
        advance(len(queries) - len(missing))
        if missing:
            self._scorer = self._scorer or self.model.load()
            scores = self._scorer.score([query for _, query in missing], advance)
            new = {key: score for (key, _), score in zip(missing, scores, strict=True)}
            for score in new.values():
                if score.cause is not None:
                    self.causes[score.cause] = self.causes.get(score.cause, 0) + 1
            scored = {key: score.value for key, score in new.items() if not score.failed}
            self.cache.put(scored)
            values |= scored
        return np.array([values.get(key, np.nan) for key in keys])


@dataclass(frozen=True)
class SubjectImages:
    """Images of the subject: some for the reward model, and a thumbnail of each for near-copies.

    Attributes:
        images: :data:`SUBJECT_IMAGES` at most, evenly distributed over the sorted names.
        thumbnails: (images, pixels) float32, from 0 to 1.
        unreadable: number of files that cannot be read.
    """

    images: Sequence[Image]
    thumbnails: np.ndarray
    unreadable: int

    @classmethod
    def from_folder(cls, folder: Path, log: Callable[[str], None]) -> SubjectImages:
        """Read all images of a folder.

        Raises:
            DataError: when the folder has no image, or none can be read.
        """
        files, readable, small, first_error = list_pictures(folder), [], [], ""
        with Progress(len(files), "read", "images", log) as progress:
            for file in progress.track(files):
                try:
                    small.append(thumbnails([read_image(file)]))
                    readable.append(file)
                except DataError as error:
                    first_error = first_error or str(error)
        if first_error:
            log(f"{len(files) - len(readable)} of {len(files)} images are left out: {first_error}")
        if not readable:
            raise DataError(f"{folder}: no image can be read: {first_error}")
        places = np.unique(np.linspace(0, len(readable) - 1, SUBJECT_IMAGES).round().astype(int))
        images = [read_image(readable[place]) for place in places]
        return cls(images, np.concatenate(small), len(files) - len(readable))

    def near_copies(self, images: Sequence[Image]) -> float:
        """Share of images with a root mean square pixel difference from a reference below :data:`NEAR_COPY`."""
        distances = thumbnail_distances(thumbnails(images), self.thumbnails)
        return float((distances.min(axis=1) < NEAR_COPY).mean())


def comparable_images(record: PromptRecord, images: Sequence[Image]) -> list[list[Image]]:
    """The groups of images of one prompt that should agree: the panels of each set, or single images of all seeds."""
    panels = [split_grid(image, record.layout) for image in images]
    return panels if len(panels[0]) > 1 else [[image for (image,) in panels]]


def identity_query(reference: Image, image: Image, trigger: str | None) -> PairQuery:
    """The query whether an image shows the subject of a reference image."""
    return PairQuery(reference, image, question(trigger))


@dataclass(frozen=True)
class Measuring:
    """Models and reference images that measure all adapters of a comparison; None leaves out a measure."""

    scorer: CachedScorer
    clip: OpenClip | None
    references: SubjectImages | None
    trigger: str | None

    def count_queries(self, folder: ImageFolder) -> int:
        """Number of queries to the reward model for one adapter."""
        panels = [rows * columns for rows, columns in (record.grid for record in folder.records)]
        seeds, references = len(folder.seeds), 0 if self.references is None else len(self.references.images)
        pairs = [n * (n - 1) // 2 * seeds if n > 1 else seeds * (seeds - 1) // 2 for n in panels]
        return sum(pairs) + references * seeds * sum(panels)

    def measure(
        self, folder: ImageFolder, base_images: Sequence[Image], advance: Callable[[int], None]
    ) -> pd.DataFrame:
        """The measures of an adapter: one row per prompt. The grid score is equal in all rows.

        Args:
            base_images: all images of the base model, from the same noise.
            advance: is called with the number of queries of each batch.
        """
        images = {record.idx: folder.images(record) for record in folder.records}
        groups = {record.idx: comparable_images(record, images[record.idx]) for record in folder.records}
        table = pd.DataFrame(index=pd.Index([record.idx for record in folder.records], name="prompt_id"))
        scores = iter(self.scorer(self._queries(folder, groups), advance))
        for record in folder.records:
            prompt_groups = groups[record.idx]
            panels = [panel for group in prompt_groups for panel in group]
            pairs = sum(len(group) * (len(group) - 1) // 2 for group in prompt_groups)
            row = {
                CONSISTENCY: _mean([next(scores) for _ in range(pairs)]),
                BRIGHTNESS: _mean(list(map(brightness, panels))),
            }
            row[DIVERSITY] = _mean([panel_diversity(group) for group in prompt_groups if len(group) > 1])
            if self.references is not None:
                row[IDENTITY] = _mean([next(scores) for _ in range(len(panels) * len(self.references.images))])
                row[COPIES] = self.references.near_copies(panels)
            table.loc[record.idx, list(row)] = list(row.values())
        if self.clip is not None:
            table[TEXT] = self._text_following(folder, groups)
        table[GRID] = largest_grid_score([image for row in images.values() for image in row], base_images)
        return table

    def _queries(self, folder: ImageFolder, groups: dict[str, list[list[Image]]]) -> list[PairQuery]:
        """The queries of each prompt: about its pairs, then about each of its panels and each reference image."""
        queries: list[PairQuery] = []
        for record in folder.records:
            text = question(record.theme)
            for group in groups[record.idx]:
                queries += [PairQuery(first, second, text) for first, second in combinations(group, 2)]
            for reference in () if self.references is None else self.references.images:
                panels = (panel for group in groups[record.idx] for panel in group)
                queries += [identity_query(reference, panel, self.trigger) for panel in panels]
        return queries

    def _text_following(self, folder: ImageFolder, groups: dict[str, list[list[Image]]]) -> list[float]:
        """Mean cosine between each panel and its text, per prompt."""
        assert self.clip is not None
        values = []
        for record in folder.records:
            panels = [panel for group in groups[record.idx] for panel in group]
            texts = self.clip.texts(panel_prompts(record) * len(folder.seeds), TEXT)
            values.append(float((self.clip.images(panels) * texts).sum(dim=1).double().mean()))
        return values


def _mean(values: Sequence[float]) -> float:
    """The mean; NaN if a value is missing, because a mean over the others would depend on the failures."""
    return float(np.mean(values)) if len(values) else float("nan")
