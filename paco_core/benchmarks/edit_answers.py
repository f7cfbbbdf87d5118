"""What a judge says of an edited picture: was the edit made, and did the rest stay?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paco_core.reward_model.scorer import Scorer
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.editing import Editing

if TYPE_CHECKING:
    from paco_core.config.params import Params


class EditAnswers:
    """The reward and the two answers that it is made of, asked once: ``editing`` and one column a question."""

    def __init__(self, editing: Editing) -> None:
        self.editing = editing

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """``editing``, ``edit_consistency`` and ``edit_following`` of each picture, (N,) each; NaN for none."""
        found = self.editing.answers(batch)
        return {"editing": np.sqrt(np.prod(list(found.values()), axis=0)), **found}


def answers(params: Params, judge: Path) -> EditAnswers:
    """What ``judge``, the folder of a merged reward model, says of edits; it is asked in this process."""
    return EditAnswers(Editing(Scorer.configured(judge, params.reward)))
