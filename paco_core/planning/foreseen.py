"""The prompts that a graph will have, before any stage has made them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paco_core.config.params import Params
from paco_core.data.prompts import edit_prompts
from paco_core.data.prompts.prompts import make_prompts
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import PromptRecord
from paco_core.tasks.base import Foreseen


def foresee(params: Params, root: Path) -> Foreseen:
    """What the stages ``prompts``, ``diverse_prompts`` and ``edit_prompts`` will leave.

    Raises:
        DataError: as these stages, for files of prompts that are malformed or too short.
    """
    return foreseen_of(params, sets_of(params, root), edits_of(params, root))


def foreseen_of(params: Params, sets: Sequence[PromptRecord], edits: Sequence[EditRecord]) -> Foreseen:
    """The prompts of both kinds, and how many of the former ``diverse_prompts`` keeps at most."""
    return Foreseen(sets, min(params.diverse_prompts.target or len(sets), len(sets)), edits)


def sets_of(params: Params, root: Path) -> list[PromptRecord]:
    """The prompts of sets; where a language model is to write them, as many stand-ins.

    Of a file that is missing, which `paco check` reports, there are none.
    """
    size, asked = (params.grids.height, params.grids.width), params.prompts
    if asked.engine == "import" and not (root / str(asked.source)).is_file():
        return []
    if asked.engine != "openai":
        return make_prompts(asked, size, root).records
    stand_in = PromptRecord.model_construct(
        idx="written", prompt="written", height=size[0], width=size[1], layout=asked.layout, theme="written",
        category="", task_name="", criteria={},
    )  # fmt: skip
    return [stand_in] * int(asked.count or 0)


def edits_of(params: Params, root: Path) -> list[EditRecord]:
    """The editing prompts; none of a file that is missing."""
    asked = params.edit_prompts
    missing = asked.source == "file" and not (root / str(asked.file)).is_file()
    return [] if missing else edit_prompts.foreseen(asked, root)
