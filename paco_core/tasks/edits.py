"""Task of editing images: make the requested change and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.config.measures import GOLD_OF_EDITS
from paco_core.data.records.edit_records import of_part, read_edit_prompts, requested_edit
from paco_core.grpo.prompt_split import PromptSplit, held_out_edits
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.policies.families import validate_reference_count, validate_story_panels
from paco_core.tasks.base import PlannedPrompts, Read, Success, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from paco_core.config.params import PolicyRecipe
    from paco_core.data.records.edit_records import EditRecord
    from paco_core.data.records.records import PromptRecord
    from paco_core.rewards.base import RewardBatch
    from paco_core.storybook.recogniser import Recogniser


class Edits(Task):
    """Instructions for reference images. Rewards measure that the edit was made and nothing else changed."""

    name, results, prompts, reward_input = "edits", paths.GEDIT, paths.EDIT_PROMPTS, "reference"
    gold = Success(GOLD_OF_EDITS[0], constraint=GOLD_OF_EDITS[2], follows=GOLD_OF_EDITS[1])
    judged = Success("editing", follows="edit_following")
    group, cases, sampling_units = "picture", "edits", "source images"

    def split(self, recipe: PolicyRecipe, read: Read) -> PromptSplit:
        _validate_no_prompt_files(recipe)
        records, reference = read_edit_prompts(read(self.prompts))
        validate_reference_counts(recipe.family, records)
        return held_out_edits(records, reference, recipe.eval_prompts, recipe.seed)

    def plan_split(self, recipe: PolicyRecipe, planned: PlannedPrompts, read: Read) -> PromptSplit | None:  # noqa: ARG002
        _validate_no_prompt_files(recipe)
        validate_reference_counts(recipe.family, planned.edits)
        if not planned.edits:
            return None
        return held_out_edits(planned.edits, None, recipe.eval_prompts, recipe.seed)

    def candidates(
        self,
        recipe: PolicyRecipe,  # noqa: ARG002
        planned: PlannedPrompts,
        read: Read,  # noqa: ARG002
    ) -> tuple[Sequence[PromptRecord], Sequence[PromptRecord]]:
        return of_part(planned.edits, "train"), of_part(planned.edits, "unseen")

    def gold_measure(self, recogniser: Recogniser) -> EditGold:
        return EditGold(recogniser)

    def validate_truth(self, records: Iterable[PromptRecord]) -> None:
        for record in records:
            requested_edit(record)


def _validate_no_prompt_files(recipe: PolicyRecipe) -> None:
    validate_story_panels(recipe)  # an edit is one picture
    if recipe.prompts is not None:
        raise DataError("prompts: its files hold sets of pictures; editing prompts come from edit_prompts.file")


def validate_reference_counts(family: str, records: Iterable[EditRecord]) -> None:
    """Check that no record has more reference images than a family supports.

    Raises:
        DataError: with the record that has too many.
    """
    for record in records:
        validate_reference_count(family, f"editing prompt {record.idx}", len(record.references))


class EditGold:
    """Ground-truth metrics of an edited image: the recogniser compares it with the reference and the instruction.

    ``gold_reached``: the requested trait is correct (0 or 1); ``gold_kept``: share of the other traits that are
    unchanged; ``gold_editing``: both (0 or 1).
    """

    def __init__(self, recogniser: Recogniser) -> None:
        self.recogniser = recogniser

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The three metrics of each image, (N,) each.

        Raises:
            DataError: when a record is not from the embedded world.
        """
        import numpy as np

        from paco_core.storybook.recogniser import gold_edit
        from paco_core.storybook.world import Panel

        instructions = [requested_edit(record) for record in batch.records]
        readings = self.recogniser.read([panels[0] for panels in batch.panels])
        edits = [
            gold_edit(reading, Panel(**before), trait, word)  # type: ignore[arg-type]
            for reading, (before, trait, word) in zip(readings, instructions, strict=True)
        ]
        rows = [(edit.editing, edit.reached, edit.unchanged) for edit in edits]
        return dict(zip(GOLD_OF_EDITS, np.array(rows, dtype=np.float64).reshape(-1, 3).T, strict=True))


EDITS = Edits()
