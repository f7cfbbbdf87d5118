"""Prompts that are longer than what a model reads: by how many tokens, and which of their text is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord

NAMED = 5  # ids in a line of the log


@dataclass(frozen=True)
class Cut:
    """What a model does not read of a prompt."""

    tokens: int  # of the whole prompt, closing token included
    window: int  # tokens that are read, ``max_sequence_length``
    lost: str

    def __str__(self) -> str:
        return (
            f"{self.tokens - self.window} of {self.tokens} tokens are beyond max_sequence_length={self.window}, "
            f"not read: {self.lost!r}"
        )


def read_part(tokenizer: Any, prompt: str, window: int) -> str:
    """The beginning of a prompt that a model reads: its longest run of at most ``window`` first tokens that is a text.

    A token may end within a character, and a shorter text may become other tokens. The text that is returned becomes
    these very tokens again.
    """
    found = tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    if len(found.input_ids) <= window:
        return prompt
    for count in range(window, 0, -1):
        text = prompt[: found.offset_mapping[count - 1][1]]
        if tokenizer(text, add_special_tokens=False, verbose=False).input_ids == found.input_ids[:count]:
            return text
    return ""


def cut_of(tokenizer: Any, prompt: str, window: int, *, closing: bool) -> Cut | None:
    """What is cut off a prompt; None where it fits.

    Args:
        closing: the tokenizer puts a closing token behind a prompt, which stays when the prompt is cut.
    """
    found = tokenizer(prompt, add_special_tokens=closing, return_offsets_mapping=True, verbose=False)
    count = len(found.input_ids)
    if count <= window:
        return None
    start = found.offset_mapping[window - closing][0]
    return Cut(count, window, prompt[start:].strip())


def cut_in_template(tokenizer: Any, text: str, prompt: str, window: int, dropped: int = 0) -> Cut | None:
    """:func:`cut_of` for a prompt in the text that a template makes of it; what is lost of the prompt.

    Args:
        dropped: tokens at the beginning of the text that are not counted; all others are, the template's too.
    """
    if (cut := cut_of(tokenizer, text, dropped + window, closing=False)) is None:
        return None
    behind = text.rpartition(prompt)[2].strip()
    lost = "" if behind.endswith(cut.lost) else cut.lost.removesuffix(behind).strip()
    return Cut(cut.tokens - dropped, window, lost)


def cut_in_dialogue(tokenizer: Any, prompt: str, window: int) -> Cut | None:
    """:func:`cut_of` for a prompt in the tokenizer's chat template, as FLUX.2 [klein] reads it."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    return cut_in_template(tokenizer, text, prompt, window)


def of_records(
    cut: Mapping[str, Cut],
    records: Iterable[PromptRecord],
    texts: Callable[[PromptRecord], Iterable[str]] = lambda record: [record.prompt],
) -> dict[str, Cut]:
    """What is cut off the prompts of records, by their ids; of several texts, the first that is too long.

    Args:
        cut: by text, as :attr:`paco_core.policies.base.Policy.cut` has it.
        texts: those that a record's picture is painted from.
    """
    lost = {record.idx: [cut[text] for text in texts(record) if text in cut] for record in records}
    return {idx: found[0] for idx, found in lost.items() if found}


def report(cuts: Mapping[str, Cut], say: Callable[[str], None]) -> dict[str, int]:
    """Log which prompts are cut; their number, as a metric.

    Args:
        cuts: by the id of the prompt.
        say: is called with one line, where any is cut: how many, the first ids, and what the first one loses.
    """
    if cuts:
        (first, cut), names = next(iter(cuts.items())), list(cuts)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        say(
            f"{len(names)} prompts are longer than the model reads and are cut: {', '.join(names[:NAMED])}{more}; "
            f"of {first} {cut}"
        )
    return {"cut_prompts": len(cuts)}
