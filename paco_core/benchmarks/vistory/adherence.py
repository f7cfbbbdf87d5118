"""How far panels show what their shots describe: probability of "Yes" to four questions, in our own words.

ViStoryBench lets a language model grade the same four from 0 to 4, the last about a character that is cropped out; here
all are about the whole panel.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from paco_core.benchmarks.t2is_bench.means import Place, answers
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
        asked: list[tuple[Place, Query]] = []  # of story, column, panel
        for row, (record, panels) in enumerate(zip(batch.records, batch.panels, strict=True)):
            story = story_of(record)
            for number, (panel, shot) in enumerate(zip(panels, story.shots, strict=True)):
                queries = [(column, PictureQuery(panel, question)) for column, question in _questions(story, shot)]
                asked += [((row, column, number), query) for column, query in queries]
        return answers(self.scorer, asked, len(batch), self.columns, self.causes)


def _questions(story: Story, shot: Shot) -> list[tuple[int, str]]:
    """What is asked about a panel, and the column that each question counts for."""
    texts = (("vistory_setting", shot.setting), ("vistory_action", shot.action), ("vistory_camera", shot.camera))
    asked = [(column, render(template, criterion=text)) for column, (template, text) in enumerate(texts)]
    names = [story.characters[key].name for key in shot.characters]
    return asked + [(3, render("vistory_character", criterion=name, instruction=shot.action)) for name in names]
