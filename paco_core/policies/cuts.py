"""Prompts that are longer than what a model reads: by how many tokens, and which of their text is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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


def cut_of(tokenizer: Any, prompt: str, window: int, *, closing: bool) -> Cut | None:
    """What is cut off a prompt; None where it fits.

    Args:
        closing: the tokenizer puts a closing token behind a prompt, which stays when the prompt is cut.
    """
    found = tokenizer(prompt, add_special_tokens=closing, return_offsets_mapping=True)
    count = len(found.input_ids)
    if count <= window:
        return None
    start = found.offset_mapping[window - closing][0]
    return Cut(count, window, prompt[start:].strip())


def summary(cuts: Mapping[str, Cut]) -> str:
    """One line about all of them, with the first as an example."""
    prompt, cut = next(iter(cuts.items()))
    return f"{len(cuts)} prompts are longer than the model reads and were truncated, e.g. {prompt[:60]!r}: {cut}"
