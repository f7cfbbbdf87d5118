"""Editing pictures: the asked change, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.config.measures import GOLD_OF_EDITS
from paco_core.data.records.edit_records import asked_of, of_part, read_edit_prompts
from paco_core.grpo.prompt_split import PromptSplit, held_out_edits
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.policies.families import validate_reference_count, validate_story_panels
from paco_core.tasks.base import Foreseen, Read, Success, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from paco_core.config.params import PolicyRecipe
    from paco_core.data.records.edit_records import EditRecord
    from paco_core.data.records.records import PromptRecord
    from paco_core.rewards.base import RewardBatch
    from paco_core.storybook.recogniser import Recogniser


class Edits(Task):
    """Instructions about reference pictures, rewarded for edits that were made and left the rest as it was."""

    name, results, prompts, given = "edits", paths.GEDIT, paths.EDIT_PROMPTS, "reference"
    gold = Success(GOLD_OF_EDITS[0], guard=GOLD_OF_EDITS[2], follows=GOLD_OF_EDITS[1])
    judged = Success("editing", follows="edit_following")
    group, cases, drawn = "picture", "edits", "source pictures"

    def split(self, recipe: PolicyRecipe, read: Read) -> PromptSplit:
        _refuse_prompts(recipe)
        records, reference = read_edit_prompts(read(self.prompts))
        refuse_too_many(recipe.family, records)
        return held_out_edits(records, reference, recipe.eval_prompts, recipe.seed)

    def foresee(self, recipe: PolicyRecipe, foreseen: Foreseen, read: Read) -> PromptSplit | None:  # noqa: ARG002
        _refuse_prompts(recipe)
        refuse_too_many(recipe.family, foreseen.edits)
        if not foreseen.edits:
            return None
        return held_out_edits(foreseen.edits, None, recipe.eval_prompts, recipe.seed)

    def paintable(
        self,
        recipe: PolicyRecipe,  # noqa: ARG002
        foreseen: Foreseen,
        read: Read,  # noqa: ARG002
    ) -> tuple[Sequence[PromptRecord], Sequence[PromptRecord]]:
        return of_part(foreseen.edits, "train"), of_part(foreseen.edits, "unseen")

    def gold_measure(self, recogniser: Recogniser) -> EditGold:
        return EditGold(recogniser)

    def validate_truth(self, records: Iterable[PromptRecord]) -> None:
        for record in records:
            asked_of(record)


def _refuse_prompts(recipe: PolicyRecipe) -> None:
    validate_story_panels(recipe)  # an edit is one picture
    if recipe.prompts is not None:
        raise DataError("prompts: its files hold sets of pictures; editing prompts come from edit_prompts.file")


def refuse_too_many(family: str, records: Iterable[EditRecord]) -> None:
    """Raise DataError, naming the record, where one has more reference pictures than a family takes."""
    for record in records:
        validate_reference_count(family, f"editing prompt {record.idx}", len(record.references))


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
        from paco_core.storybook.world import Panel

        asked = [asked_of(record) for record in batch.records]
        readings = self.recogniser.read([panels[0] for panels in batch.panels])
        found = [
            gold_edit(reading, Panel(**before), trait, word)  # type: ignore[arg-type]
            for reading, (before, trait, word) in zip(readings, asked, strict=True)
        ]
        rows = [(edit.editing, edit.reached, edit.kept) for edit in found]
        return dict(zip(GOLD_OF_EDITS, np.array(rows, dtype=np.float64).reshape(-1, 3).T, strict=True))


EDITS = Edits()
