"""Task of generating sets: one image with several consistent panels."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.config.measures import GOLD_OF_CHARACTERS, GOLD_OF_SETS
from paco_core.data.records import prompt_text
from paco_core.data.records.characters import load_images
from paco_core.data.records.prompt_content import first_of_each_content
from paco_core.data.records.records import characters_of_panels, read_prompts
from paco_core.grpo.panel_references import validate_panel_references
from paco_core.grpo.prompt_split import PromptSplit, hold_out, predefined_split
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected
from paco_core.policies.families import validate_story_panels
from paco_core.tasks.base import PlannedPrompts, Read, Success, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np

    from paco_core.config.params import Params, PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.rewards.base import RewardBatch
    from paco_core.storybook.recogniser import Reading, Recogniser


class Sets(Task):
    """Prompts of the T2IS format. Rewards measure the consistency of the panels."""

    name, results, prompts, reward_input = "sets", paths.T2IS, paths.DIVERSE_PROMPTS, "panels"
    gold = Success(GOLD_OF_SETS[0], constraint=GOLD_OF_SETS[1], follows=GOLD_OF_SETS[1])
    judged = Success("consistency", constraint="clip_t")
    group, cases, sampling_units = "prompt_id", "prompts", "prompts"

    def split(self, recipe: PolicyRecipe, read: Read) -> PromptSplit:
        validate_story_panels(recipe)
        files, check = recipe.prompts, partial(validate_panel_references, recipe)
        if files is None:
            return hold_out(read_sets(read(self.prompts) / "prompts.jsonl", check), recipe.eval_prompts, recipe.seed)
        trained, test = (read_sets(read(Path(file)), check) for file in (files.train, files.test))
        return predefined_split(trained, test, recipe.eval_prompts, recipe.seed)

    def plan_split(self, recipe: PolicyRecipe, planned: PlannedPrompts, read: Read) -> PromptSplit | None:
        validate_story_panels(recipe)
        if recipe.prompts is not None:
            there = all(read(Path(file)).is_file() for file in (recipe.prompts.train, recipe.prompts.test))
            return self.split(recipe, read) if there else None
        if not planned.prompts:
            return None
        _validate_planned(recipe, planned.prompts)
        # The stage diverse_prompts keeps prompts with different contents.
        diverse = first_of_each_content(planned.prompts)[: planned.num_diverse]
        return hold_out(diverse, recipe.eval_prompts, recipe.seed)

    def candidates(
        self, recipe: PolicyRecipe, planned: PlannedPrompts, read: Read
    ) -> tuple[Sequence[PromptRecord], Sequence[PromptRecord]]:
        if recipe.prompts is None:
            return planned.prompts, planned.prompts
        files = [read(Path(file)) for file in (recipe.prompts.train, recipe.prompts.test)]
        trained, test = (read_sets(file) if file.is_file() else [] for file in files)
        return trained, test

    def has_separate_panels(self, params: Params) -> bool:
        return params.t2is.separately

    def gold_measure(self, recogniser: Recogniser) -> SetGold:
        return SetGold(recogniser)

    def validate_truth(self, records: Iterable[PromptRecord]) -> None:
        from paco_core.storybook.prompts import parse_storybook_prompt

        for record in records:
            try:
                parse_storybook_prompt(record.prompt)
            except ValueError as error:
                raise DataError(
                    f"prompt {record.idx}: {error}; the world storybook measures prompts of the storybook alone; set "
                    "world: real"
                ) from None


def _validate_planned(recipe: PolicyRecipe, records: Iterable[PromptRecord]) -> None:
    """:func:`validate_panel_references` for records that no file of the recipe has."""
    problems = list[str]()
    for record in records:
        try:
            validate_panel_references(recipe, record)
        except DataError as error:
            problems.append(f"record {record.idx}: {error}")
    if problems:
        raise DataError("; ".join(problems))


def read_sets(path: Path, check: Callable[[PromptRecord], None] = lambda _record: None) -> list[PromptRecord]:
    """Read records whose text marks the panels of their layout.

    Args:
        check: raises a DataError if a record cannot be used.

    Raises:
        DataError: with file and lines of all invalid records, or if there is no record.
    """
    rejected = Rejected()

    def check_record(record: PromptRecord) -> None:
        prompt_text.parse_prompt(record.prompt, record.layout)
        check(record)

    records = read_prompts(path, check_record, rejected)
    if rejected:
        raise DataError("; ".join(rejected.causes))
    if not records:
        raise DataError(f"{path}: holds no prompt")
    return records


class SetGold:
    """Ground-truth metrics of panels: the recogniser compares them with each other, the prompt and its characters."""

    def __init__(self, recogniser: Recogniser) -> None:
        self.recogniser = recogniser

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """``gold_consistency`` (NaN for a single panel) and ``gold_following`` of each set, (N,) each.

        If records have characters, also the metrics of :meth:`_identity`.
        """
        import numpy as np

        from paco_core.storybook.prompts import parse_storybook_prompt
        from paco_core.storybook.recogniser import gold_consistency, gold_following

        readings = iter(self.recogniser.read([panel for panels in batch.panels for panel in panels]))
        sets: list[list[Reading]] = [[next(readings) for _ in panels] for panels in batch.panels]
        prompts = [parse_storybook_prompt(record.prompt) for record in batch.records]
        following = [gold_following(set_readings, panels) for set_readings, panels in zip(sets, prompts, strict=True)]
        consistency = [gold_consistency(set_readings) if len(set_readings) > 1 else np.nan for set_readings in sets]
        measures = consistency, following
        metrics = {name: np.array(values, np.float64) for name, values in zip(GOLD_OF_SETS, measures, strict=True)}
        return metrics | (self._identity(batch, sets) if any(record.characters for record in batch.records) else {})

    def _identity(self, batch: RewardBatch, sets: Sequence[Sequence[Reading]]) -> dict[str, np.ndarray]:
        """``gold_identity`` and ``gold_identity_new`` of each story, (N,) each.

        A panel counts if its text names one character, because the recogniser reads one character per image. The first
        metric is the mean over these panels, the second one is the mean over those of them that are not copies. NaN if
        there is no such panel.
        """
        import numpy as np

        from paco_core.grpo.image_alarm import is_copied
        from paco_core.grpo.metrics import mean
        from paco_core.storybook.recogniser import gold_identity

        characters = {character for record in batch.records for character in record.characters}
        references = {character: self.recogniser.read(load_images(character)) for character in characters}
        rows = np.full((len(batch.records), len(GOLD_OF_CHARACTERS)), np.nan)
        for number, (record, panels, readings) in enumerate(zip(batch.records, batch.panels, sets, strict=True)):
            if record.characters:
                pairs = zip(readings, characters_of_panels(record), strict=True)
                values = np.array(
                    [gold_identity(read, references[names[0]]) if len(names) == 1 else np.nan for read, names in pairs]
                )
                rows[number] = mean(values), mean(values[~is_copied(record, panels)])
        return dict(zip(GOLD_OF_CHARACTERS, rows.T, strict=True))


SETS = Sets()
