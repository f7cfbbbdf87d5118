"""Measures of an edited picture that are no training reward: did the edit happen, and did the rest stay?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records.edit_records import asked_of
from paco_core.rewards.base import RewardBatch
from paco_core.storybook.world import Panel

if TYPE_CHECKING:
    import numpy as np

    from paco_core.config.params import Params
    from paco_core.rewards.editing import Editing
    from paco_core.storybook.recogniser import Recogniser


class EditGold:
    """What the recogniser sees in an edited picture, against the reference's traits and the instruction.

    ``gold_reached``: the asked trait is as asked (0 or 1); ``gold_kept``: share of the other traits that are as they
    were; ``gold_editing``: reached, and all others kept (0 or 1).
    """

    def __init__(self, recogniser: Recogniser) -> None:
        self.recogniser = recogniser

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The three of each picture, (N,) each.

        Raises:
            DataError: when a record is not one of the embedded world's.
        """
        import numpy as np

        from paco_core.storybook.recogniser import gold_edit

        asked = [asked_of(record) for record in batch.records]
        readings = self.recogniser.read([panels[0] for panels in batch.panels])
        found = [
            gold_edit(reading, Panel(**before), trait, word)  # type: ignore[arg-type]
            for reading, (before, trait, word) in zip(readings, asked, strict=True)
        ]
        rows = [(edit.editing, edit.reached, edit.kept) for edit in found]
        names = ("gold_editing", "gold_reached", "gold_kept")
        return dict(zip(names, np.array(rows, dtype=np.float64).reshape(-1, 3).T, strict=True))


class EditAnswers:
    """The reward and the two answers that it is made of, asked once: ``editing`` and one column a question."""

    def __init__(self, editing: Editing) -> None:
        self.editing = editing

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """``editing``, ``edit_consistency`` and ``edit_following`` of each picture, (N,) each; NaN for none."""
        import numpy as np

        found = self.editing.answers(batch)
        return {"editing": np.sqrt(np.prod(list(found.values()), axis=0)), **found}


def answers(params: Params, judge: Path) -> EditAnswers:
    """What ``judge``, the folder of a merged reward model, says of edits; it is asked in this process."""
    from paco_core.reward_model.scorer import Scorer
    from paco_core.rewards.editing import Editing

    return EditAnswers(Editing(Scorer.configured(judge, params.reward)))


def gold(params: Params, recogniser: Path) -> EditGold | None:
    """The embedded world's truth about edits; None in the real world."""
    if params.world != "storybook":
        return None
    from paco_core.storybook.recogniser import Recogniser

    return EditGold(Recogniser.from_pretrained(recogniser))
