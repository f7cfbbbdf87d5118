"""The prompts that a graph will have, before any stage has made them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from paco_core.config.params import Params, PolicyRecipe
from paco_core.data.prompts import edit_prompts
from paco_core.data.prompts.prompts import in_turn, make_prompts, prompts_per_layout, read_imported_prompts
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.panels import grid_size
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected
from paco_core.tasks.base import PlannedPrompts
from paco_core.tasks.table import task_of


def plan_prompts(params: Params, root: Path) -> PlannedPrompts:
    """What the stages ``prompts``, ``diverse_prompts`` and ``edit_prompts`` will leave.

    Raises:
        DataError: as these stages, for files of prompts that are malformed or too short.
    """
    return build_planned_prompts(params, sets_of(params, root), edits_of(params, root))


def plan_prompts_or_empty(params: Params, root: Path) -> PlannedPrompts:
    """:func:`plan_prompts`; nothing where files cannot be used, which `paco check` reports."""
    try:
        return plan_prompts(params, root)
    except DataError:
        return PlannedPrompts([], 0, [])


def build_planned_prompts(params: Params, sets: Sequence[PromptRecord], edits: Sequence[EditRecord]) -> PlannedPrompts:
    """The prompts of both kinds, and how many of the former ``diverse_prompts`` keeps at most."""
    return PlannedPrompts(sets, min(params.diverse_prompts.target or len(sets), len(sets)), edits)


def sets_of(params: Params, root: Path) -> list[PromptRecord]:
    """The prompts of sets; where a language model is to write them, as many stand-ins.

    Of a file that is missing, which `paco check` reports, there are none.
    """
    size, prompts = (params.grids.height, params.grids.width), params.prompts
    if prompts.engine == "import" and not (root / str(prompts.source)).is_file():
        return []
    if prompts.engine != "openai":
        return make_prompts(prompts, size, root).records
    counts = prompts_per_layout(prompts.count or 0, prompts.layouts)
    return in_turn([_stand_in(layout, size, n) for n in range(count)] for layout, count in counts.items())


def trained_on(planned: PlannedPrompts, recipe: PolicyRecipe, root: Path) -> Sequence[PromptRecord]:
    """The prompts of which a recipe is trained on some; none where they cannot be used, which `paco check` reports."""
    try:
        split = task_of(recipe).plan_split(recipe, planned, lambda path: root / path)
    except DataError:
        return []
    return [] if split is None else split.trained


def candidates(
    planned: PlannedPrompts, recipe: PolicyRecipe, root: Path
) -> tuple[Sequence[PromptRecord], Sequence[PromptRecord]]:
    """Prompts that a recipe may be trained on, and those that its evaluations and its benchmark may paint.

    Memory must hold the largest of them. None where they cannot be used, which `paco check` reports.
    """
    try:
        return task_of(recipe).candidates(recipe, planned, lambda path: root / path)
    except DataError:
        return [], []


def list_unusable_rows(params: Params, root: Path) -> list[str]:
    """Rows of the files of prompts that cannot be used: one remark per cause, with the numbers of all its rows.

    If a file is refused, its error contains the first row. There are remarks only if more rows cannot be used.
    """
    remarks = []
    for key, read in _readers_of_rows(params, root).items():
        rejected = Rejected()
        try:
            is_usable = read(rejected)
        except DataError:  # `paco check` reports the file itself
            is_usable = False
        if len(rejected) > (not is_usable):
            remarks += [f"{key}: left out: {cause}" for cause in rejected.causes]
    return remarks


def _readers_of_rows(params: Params, root: Path) -> dict[str, Callable[[Rejected], bool]]:
    """Key -> reads its file, adds the rows that cannot be used, and returns whether there are others."""
    prompts, edits, triples = params.prompts, params.edit_prompts, params.pairs.editing
    readers: dict[str, Callable[[Rejected], bool]] = {}
    if prompts.engine == "import" and (source := root / str(prompts.source)).is_file():
        readers["prompts.source"] = lambda rejected: bool(
            read_imported_prompts(source, prompts.layouts, prompts.count, rejected).records
        )
    if edits.source == "file" and (file := root / str(edits.file)).is_file():
        readers["edit_prompts.file"] = lambda rejected: bool(
            edit_prompts.read_edit_rows(file, edits.count, heads=True, rejected=rejected).records
        )
    if triples.source == "import" and triples.file and (root / triples.file).is_file():
        from paco_core.data.pairs import editing

        readers["pairs.editing.file"] = lambda rejected: bool(editing.add_expected_rejects(triples, root, rejected))
    stories = params.pairs.characters.stories
    if stories is not None and (root / stories).is_file():
        from paco_core.data.pairs.character_stories import read_stories

        readers["pairs.characters.stories"] = lambda rejected: bool(read_stories(root / stories, rejected, heads=True))
    return readers


def _stand_in(layout: str, size: tuple[int, int], number: int) -> PromptRecord:
    height, width = grid_size(layout, size)
    name = f"written-{layout}-{number}"
    return PromptRecord.model_construct(
        idx=name, prompt=name, height=height, width=width, layout=layout, theme=name, category="", task_name="",
        criteria={},
    )  # fmt: skip


def edits_of(params: Params, root: Path) -> list[EditRecord]:
    """The editing prompts; none of a file that is missing."""
    config = params.edit_prompts
    missing = config.source == "file" and not (root / str(config.file)).is_file()
    return [] if missing else edit_prompts.plan_edits(config, root)
