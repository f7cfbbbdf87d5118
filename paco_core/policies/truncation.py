"""Truncation: prompts that are longer than the text window of a model, and the text that the model does not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord

MAX_LOGGED_IDS = 5  # in a line of the log


@dataclass(frozen=True)
class Truncation:
    """The part of a prompt that a model does not read.

    Attributes:
        tokens: number of tokens of the complete prompt, including the closing token.
        window: number of tokens that the model reads, ``max_sequence_length``.
        lost: the text that the model does not read.
    """

    tokens: int
    window: int
    lost: str

    def __str__(self) -> str:
        return (
            f"{self.tokens - self.window} of {self.tokens} tokens are beyond max_sequence_length={self.window}, "
            f"not read: {self.lost!r}"
        )


def truncate_prompt(tokenizer: Any, prompt: str, window: int) -> str:
    """Return the beginning of a prompt that a model reads: the longest text of at most ``window`` first tokens.

    A token may end within a character, and a shorter text may become other tokens. The tokenizer turns the returned
    text into exactly these tokens again.
    """
    encoding = tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    if len(encoding.input_ids) <= window:
        return prompt
    for count in range(window, 0, -1):
        text = prompt[: encoding.offset_mapping[count - 1][1]]
        if tokenizer(text, add_special_tokens=False, verbose=False).input_ids == encoding.input_ids[:count]:
            return text
    return ""


def find_truncation(tokenizer: Any, prompt: str, window: int, *, closing: bool) -> Truncation | None:
    """Return what a model does not read of a prompt, or None if the prompt fits into the window.

    Args:
        window: number of tokens that the model reads.
        closing: whether the tokenizer appends a closing token, which stays when the prompt is truncated.
    """
    encoding = tokenizer(prompt, add_special_tokens=closing, return_offsets_mapping=True, verbose=False)
    count = len(encoding.input_ids)
    if count <= window:
        return None
    start = encoding.offset_mapping[window - closing][0]
    return Truncation(count, window, prompt[start:].strip())


def find_truncation_in_template(
    tokenizer: Any, text: str, prompt: str, window: int, dropped: int = 0
) -> Truncation | None:
    """:func:`find_truncation` for a prompt that a template wraps. ``lost`` contains text of the prompt only.

    Args:
        text: the template, filled in with ``prompt``.
        window: number of tokens that the model reads, including the tokens of the template after ``dropped``.
        dropped: number of tokens at the beginning of ``text`` that do not count.
    """
    if (truncation := find_truncation(tokenizer, text, dropped + window, closing=False)) is None:
        return None
    suffix = text.rpartition(prompt)[2].strip()
    lost = "" if suffix.endswith(truncation.lost) else truncation.lost.removesuffix(suffix).strip()
    return Truncation(truncation.tokens - dropped, window, lost)


def find_truncation_in_chat(tokenizer: Any, prompt: str, window: int, *, thinking: bool) -> Truncation | None:
    """:func:`find_truncation` for a prompt in the tokenizer's chat template, as FLUX.2 [klein] and Z-Image read it.

    Args:
        thinking: ``enable_thinking`` of the template (:data:`paco_core.policies.windows.CHATS`).
    """
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True, enable_thinking=thinking
    )
    return find_truncation_in_template(tokenizer, text, prompt, window)


def truncations_by_id(
    truncations: Mapping[str, Truncation],
    records: Iterable[PromptRecord],
    texts: Callable[[PromptRecord], Iterable[str]] = lambda record: [record.prompt],
) -> dict[str, Truncation]:
    """Return the truncations of records by their ids. If several texts of a record are too long, the first counts.

    Args:
        truncations: by text, as in :attr:`paco_core.policies.base.Policy.truncations`.
        texts: returns the texts from which the image of a record is generated.
    """
    matches = {record.idx: [truncations[text] for text in texts(record) if text in truncations] for record in records}
    return {idx: of_record[0] for idx, of_record in matches.items() if of_record}


def log_truncations(truncations: Mapping[str, Truncation], log: Callable[[str], None]) -> dict[str, int]:
    """Log which prompts are truncated and return their number as a metric.

    Args:
        truncations: by the id of the prompt.
        log: is called with one line if any prompt is truncated. The line contains the number of prompts, the first
            ids, and the lost text of the first prompt.
    """
    if truncations:
        (first, truncation), ids = next(iter(truncations.items())), list(truncations)
        further = f" and {len(ids) - MAX_LOGGED_IDS} more" if len(ids) > MAX_LOGGED_IDS else ""
        log(
            f"{len(ids)} prompts are longer than the model reads and are cut: {', '.join(ids[:MAX_LOGGED_IDS])}"
            f"{further}; of {first} {truncation}"
        )
    return {"cut_prompts": len(truncations)}
