"""ViStoryBench: do the panels of a story show its characters, by a model that compares them with their images?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from paco_core.benchmarks.t2is_bench.evaluators import ScoreIndex, mean_of_means
from paco_core.data.records.story_records import story_of
from paco_core.io.pictures import read_image
from paco_core.reward_model.yes_probability import PairQuery, QueryScorer
from paco_core.rewards.characters import character_query

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord
    from paco_core.data.records.story_records import Story
    from paco_core.rewards.base import RewardBatch

PanelScores = Mapping[tuple[int, str], float]  # of one story: (panel, character) -> score


class IdentityByEvaluator:
    """Column ``identity_yes``: P(Yes) that a panel shows the character of an image, as the reward ``characters`` asks.

    It is a mean over the panels and images of a character, then over characters; NaN if a story has no character with
    images, or a query failed.

    Args:
        folder: folder to which paths of images are relative.
    """

    columns: tuple[str, ...] = ("identity_yes",)

    def __init__(self, scorer: QueryScorer, folder: Path) -> None:
        self.scorer, self.folder = scorer, folder
        self.causes: Counter[str] = Counter()
        self.panels: list[PanelScores] = []  # of each measured story, in order

    def count(self, record: PromptRecord) -> int:
        """Number of queries about a story.

        Raises:
            DataError: if the record is not a story.
        """
        story = story_of(record)
        return sum(len(story.cast[key].pictures) for _, key in _appearances(story))

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The column, (N,).

        Raises:
            DataError: if a record is not a story, or an image is missing or damaged.
        """
        places: list[tuple[ScoreIndex, tuple[int, str]]] = []
        queries: list[PairQuery] = []
        for row, (record, panels) in enumerate(zip(batch.records, batch.panels, strict=True)):
            story = story_of(record)
            numbers = {key: number for number, key in enumerate(story.cast)}
            images = {key: [read_image(self.folder / p) for p in member.pictures] for key, member in story.cast.items()}
            for panel, key in _appearances(story):
                for image in images[key]:
                    queries.append(character_query(image, panels[panel], story.cast[key].name))
                    places.append(((row, 0, numbers[key]), (panel, key)))
        scores = self.scorer.score(queries)
        self.causes.update(score.cause for score in scores if score.cause is not None)
        values = [score.value for score in scores]
        by_panel: list[dict[tuple[int, str], list[float]]] = [{} for _ in batch.records]
        for ((row, _, _), place), value in zip(places, values, strict=True):
            by_panel[row].setdefault(place, []).append(value)
        for of_story in by_panel:
            means_of_panels: dict[tuple[int, str], float] = {key: float(np.mean(row)) for key, row in of_story.items()}
            self.panels.append(means_of_panels)
        means = mean_of_means([index for index, _ in places], values, (len(batch), 1))
        return {"identity_yes": means[:, 0]}


def _appearances(story: Story) -> Iterator[tuple[int, str]]:
    """Each panel with each of its characters that have images."""
    for number, shot in enumerate(story.shots):
        yield from ((number, key) for key in shot.characters if story.cast[key].pictures)


def panel_table(stories: pd.DataFrame, scores: Mapping[str, Sequence[PanelScores]]) -> pd.DataFrame:
    """One row per panel and character: method, prompt_id, seed, panel (from 1), character, and the scores by name.

    Args:
        stories: one row per story.
        scores: by the name of the metric, of each story in this order.
    """
    rows = []
    for number, story in enumerate(stories[["method", "prompt_id", "seed"]].to_dict("records")):
        values = {name: panels[number] for name, panels in scores.items()}
        for panel, key in sorted({place for of_story in values.values() for place in of_story}):
            metrics = {name: of_story.get((panel, key), np.nan) for name, of_story in values.items()}
            rows.append(story | {"panel": panel + 1, "character": key} | metrics)
    return pd.DataFrame(rows, columns=["method", "prompt_id", "seed", "panel", "character", *scores])
