"""Sources of prompts: the storybook world, a file of public T2IS records, or a language model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.llm.journal import Journal
from paco_core.data.llm.openai_chat import Chat
from paco_core.data.prompts.prompt_writer import PromptJob, write_new_prompts
from paco_core.data.records import prompt_text
from paco_core.data.records.categories import CATEGORIES, category
from paco_core.data.records.panels import grid_size
from paco_core.data.records.prompt_content import prompt_key
from paco_core.data.records.records import PromptRecord, read_prompts
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected
from paco_core.storybook.prompts import StorybookPrompt, storybook_prompts

if TYPE_CHECKING:
    from paco_core.config.params import ChatParams, PromptsParams

JOURNAL = Path(".paco/prompts/journal.jsonl")  # outside the outs, which DVC deletes before a run


@dataclass
class Prompts:
    """Records in a stable order, and the counts of their creation for the report."""

    records: list[PromptRecord]
    figures: dict[str, int] = field(default_factory=dict)
    rejected: Rejected = field(default_factory=Rejected)


def make_prompts(
    params: PromptsParams,
    size: tuple[int, int],
    root: Path = Path(),
    advance: Callable[[int], object] = lambda _count: None,
) -> Prompts:
    """Create the prompts by the parameters.

    Args:
        size: (height, width) in pixels of an image of 2x2 panels, for prompts without a size. Other layouts have panels
            of the same size.
        root: base folder of a relative ``params.source``, and of the stored answers of a language model.

    Raises:
        DataError: if the source is missing or malformed or has too few prompts, or the language model does not work.
    """
    if params.engine == "none":
        return Prompts([])
    if params.engine == "storybook":
        return Prompts(_storybook(params, size))
    if params.engine == "openai":
        assert params.endpoint is not None  # params.py sees to it
        return _written(params, params.endpoint, size, root, advance)
    return read_imported_prompts(root / str(params.source), params.layouts, params.count)


def read_imported_prompts(
    source: Path, layouts: Sequence[str], count: int | None, rejected: Rejected | None = None
) -> Prompts:
    """The first ``count`` records (None: all) of a JSON Lines file of T2IS-Bench or of PaCo-RL.

    Records that cannot be used, or that repeat a prompt under another id, are skipped and counted, with line and cause.
    Unknown keys are kept and counted.

    Args:
        layouts: layouts of the records to read; empty reads all.
        rejected: gets the rows that are left out, also when an error is raised.

    Raises:
        DataError: if the file contains fewer than ``count`` usable records of these layouts.
    """
    prompts = Prompts([]) if rejected is None else Prompts([], rejected=rejected)
    first: dict[str, str] = {}

    def check(record: PromptRecord) -> None:
        _check(record)
        if (idx := first.setdefault(prompt_key(record), record.idx)) != record.idx:
            raise DataError(f"it repeats the prompt of record {idx}")

    records = read_prompts(source, check, prompts.rejected)
    matching = [record for record in records if not layouts or record.layout in layouts]
    if len(matching) < (count or 1):
        layout_counts = ", ".join(f"{n} of {name}" for name, n in sorted(Counter(r.layout for r in records).items()))
        left_out = f"; {len(prompts.rejected)} left out{prompts.rejected.example}" if prompts.rejected else ""
        of_layout = f" of layout {' or '.join(layouts)}" if layouts else ""
        raise DataError(
            f"{source}: {count or 'all'} prompts{of_layout} are asked for, it holds {layout_counts or 'no usable one'}"
            f"{left_out}; lower prompts.count or change prompts.layout"
        )
    prompts.records = matching[:count]
    unknown = Counter(key for record in prompts.records for key in record.unknown_keys)
    prompts.figures = {"rejected": len(prompts.rejected), **{f"unknown_key.{k}": n for k, n in sorted(unknown.items())}}
    return prompts


def prompts_per_layout(count: int, layouts: Sequence[str]) -> dict[str, int]:
    """How many of ``count`` prompts each layout gets: equal shares, one more for the first ones."""
    size, remainder = divmod(count, len(layouts))
    return {layout: size + (number < remainder) for number, layout in enumerate(layouts)}


def in_turn(lists: Iterable[Sequence[PromptRecord]]) -> list[PromptRecord]:
    """The first of each list, then the second of each, and so on."""
    return [record for turn in zip_longest(*lists) for record in turn if record is not None]


def _check(record: PromptRecord) -> None:
    if category(record) not in CATEGORIES:
        raise DataError(f"unknown category {record.category!r}; expected one of {', '.join(CATEGORIES)}")
    prompt_text.parse_prompt(record.prompt, record.layout)


def _written(
    params: PromptsParams, endpoint: ChatParams, size: tuple[int, int], root: Path, advance: Callable[[int], object]
) -> Prompts:
    with Journal(root / JOURNAL) as journal:
        chat = Chat(endpoint, journal)
        results = [
            write_new_prompts(chat, count, PromptJob(layout, grid_size(layout, size), params.seed), advance)
            for layout, count in prompts_per_layout(int(params.count or 0), params.layouts).items()
        ]
    causes = sum((result.rejected for result in results), Counter[str]()) + chat.counts.rejected
    rejected = {f"rejected.{cause}": count for cause, count in sorted(causes.items())}
    return Prompts(in_turn(result.records for result in results), chat.counts.figures() | rejected)


def _storybook(params: PromptsParams, size: tuple[int, int]) -> list[PromptRecord]:
    return in_turn(
        [storybook_record(prompt, *grid_size(layout, size)) for prompt in storybook_prompts(count, params.seed, layout)]
        for layout, count in prompts_per_layout(int(params.count or 0), params.layouts).items()
    )


def storybook_record(prompt: StorybookPrompt, height: int, width: int) -> PromptRecord:
    """The record of a storybook prompt for an image of this size in pixels."""
    return PromptRecord(
        idx=prompt.idx,
        prompt=prompt.prompt,
        height=height,
        width=width,
        layout=prompt.layout,
        theme=prompt.theme,
        category=prompt.category,
        task_name=prompt.task_name,
        criteria={name: dict(texts) for name, texts in prompt.criteria.items()},
    )
