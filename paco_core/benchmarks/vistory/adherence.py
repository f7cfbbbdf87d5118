"""How far panels show what their shots describe: probability of "Yes" to four questions, in our own words.

ViStoryBench lets a language model grade the same four from 0 to 4, the last about a character that is cropped out; here
all are about the whole panel.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from paco_core.benchmarks.t2is_bench.means import mean_of_means
from paco_core.data.records.story_records import story_of
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PictureQuery, Query, QueryScorer

if TYPE_CHECKING:
    import numpy as np

    from paco_core.data.records.records import PromptRecord
    from paco_core.data.records.story_records import Shot, Story
    from paco_core.rewards.base import RewardBatch


class AdherenceToShots:
    """Columns ``setting``, ``action``, ``camera`` and ``character``: means over a panel's questions, then over
    panels; NaN where a story has no such question, or any of them failed.
    """

    columns: tuple[str, ...] = ("setting", "action", "camera", "character")

    def __init__(self, scorer: QueryScorer) -> None:
        self.scorer = scorer
        self.causes: Counter[str] = Counter()

    def count(self, record: PromptRecord) -> int:
        """How many questions are asked about one painting of a story.

        Raises:
            DataError: when the record is no story.
        """
        story = story_of(record)
        return sum(len(_questions(story, shot)) for shot in story.shots)

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The columns, (N,) each."""
        queries: list[Query] = []
        places: list[tuple[int, int, int]] = []  # story, column, panel
        for row, (record, panels) in enumerate(zip(batch.records, batch.panels, strict=True)):
            story = story_of(record)
            for number, (panel, shot) in enumerate(zip(panels, story.shots, strict=True)):
                for column, question in _questions(story, shot):
                    queries.append(PictureQuery(panel, question))
                    places.append((row, column, number))
        scores = self.scorer.score(queries)
        self.causes.update(score.cause for score in scores if score.cause is not None)
        found = mean_of_means(places, [score.value for score in scores], (len(batch), len(self.columns)))
        return dict(zip(self.columns, found.T, strict=True))


def _questions(story: Story, shot: Shot) -> list[tuple[int, str]]:
    """What is asked about a panel, and the column that each question counts for."""
    texts = (("vistory_setting", shot.setting), ("vistory_action", shot.action), ("vistory_camera", shot.camera))
    asked = [(column, render(template, criterion=text)) for column, (template, text) in enumerate(texts)]
    names = [story.characters[key].name for key in shot.characters]
    return asked + [(3, render("vistory_character", criterion=name, instruction=shot.action)) for name in names]
