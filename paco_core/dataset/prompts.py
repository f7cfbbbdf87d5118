"""Where prompts come from: the embedded world, or a file of public T2IS records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from paco_core.dataset import prompt_text
from paco_core.dataset.records import PromptRecord, read_prompts
from paco_core.files import DataError
from paco_core.params import PromptsParams

#: The six categories; public files write them with or without the word "Generation".
CATEGORIES = ("Design Style", "Story", "Process", "Instruction", "Character", "Editing")


def make_prompts(params: PromptsParams, size: tuple[int, int], root: Path = Path()) -> list[PromptRecord]:
    """The prompts that the parameters ask for, in a stable order.

    Args:
        size: (height, width) in pixels of a picture for prompts that name no size of their own.
        root: where a relative ``params.source`` begins.

    Raises:
        DataError: when the source is missing or malformed, or holds too few prompts.
    """
    if params.engine == "storybook":
        return _storybook(params, size)
    return imported(root / str(params.source), params.layout, params.count)


def imported(source: Path, layout: str, count: int) -> list[PromptRecord]:
    """The first ``count`` records of that layout in a JSON Lines file.

    Raises:
        DataError: naming the file and the record whose category is unknown or whose text does not mark its
            panels, or when the file holds fewer than ``count`` records of that layout.
    """
    records = read_prompts(source)
    for record in records:
        if category(record) not in CATEGORIES:
            raise DataError(
                f"{source}: record {record.idx}: unknown category {record.category!r}; "
                f"expected one of {', '.join(CATEGORIES)}"
            )
        try:
            prompt_text.parse(record.prompt, record.layout)
        except DataError as error:
            raise DataError(f"{source}: record {record.idx}: {error}") from None
    matching = [record for record in records if record.layout == layout]
    if len(matching) < count:
        found = ", ".join(f"{n} of {name}" for name, n in sorted(Counter(r.layout for r in records).items()))
        raise DataError(
            f"{source}: {count} prompts of layout {layout} are asked for, it holds {found}; "
            "lower prompts.count or change prompts.layout"
        )
    return matching[:count]


def category(record: PromptRecord) -> str:
    """The category without the word that some files append."""
    return record.category.removesuffix(" Generation")


def _storybook(params: PromptsParams, size: tuple[int, int]) -> list[PromptRecord]:
    from paco_core.storybook.prompts import storybook_prompts

    return [
        PromptRecord(
            idx=made.idx,
            prompt=made.prompt,
            height=size[0],
            width=size[1],
            layout=made.layout,
            theme=made.theme,
            category=made.category,
            task_name=made.task_name,
            criteria={name: dict(texts) for name, texts in made.criteria.items()},
        )
        for made in storybook_prompts(params.count, params.seed, params.layout)
    ]
