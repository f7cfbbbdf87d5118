"""Tokenizers and external texts: special tokens in a text, and texts that a model truncates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from paco_core.io.files import DataError

log = logging.getLogger("paco.texts")


def validate_tokens(tokenizer: Any, text: str) -> None:
    """Validate that a text contains no special token of a tokenizer, such as ``<|im_end|>``.

    :func:`paco_core.io.text.validate_marks` rejects the special tokens of the supported models when a text is read.
    This function also rejects the other special tokens of a tokenizer.

    Args:
        tokenizer: of transformers. Other tokenizers have no list of special tokens.

    Raises:
        DataError: if the text contains a special token.
    """
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    plain = text if normalizer is None else normalizer.normalize_str(text)
    for token in getattr(tokenizer, "added_tokens_decoder", {}).values():
        if (token.special or "<" in token.content) and token.content in (plain if token.normalized else text):
            raise DataError(
                f"the text contains {token.content}, which {tokenizer.name_or_path or 'the model'} reads as a special "
                f"token: {text[:80]!r}; remove it"
            )


def text_tokenizer(part: Any) -> Any:
    """The tokenizer of a pipeline's part, which may be the processor of a vision-language model."""
    return getattr(part, "tokenizer", part)


def validate_prompts(pipeline: Any, prompts: Iterable[str]) -> None:
    """Call :func:`validate_tokens` with each tokenizer of a diffusers pipeline and each prompt."""
    parts = [part for name, part in pipeline.components.items() if name.startswith(("tokenizer", "processor"))]
    tokenizers = [text_tokenizer(part) for part in parts]
    for prompt, tokenizer in product(prompts, tokenizers):
        validate_tokens(tokenizer, prompt)


def token_counts(tokenizer: Any, texts: list[str]) -> list[int]:
    """Number of tokens of each text, including tokens that the tokenizer adds."""
    return [len(ids) for ids in tokenizer(texts, truncation=False, verbose=False)["input_ids"]]


@dataclass(frozen=True)
class ReadTexts:
    """Distinct texts that a model has read, each with its number of tokens. It reads at most ``window`` of them."""

    window: int
    lengths: dict[str, int] = field(default_factory=dict)

    @property
    def truncated(self) -> int:
        """Number of longer texts."""
        return sum(length > self.window for length in self.lengths.values())

    def __str__(self) -> str:
        return (
            f"{self.truncated} of {len(self.lengths)} texts are longer than the {self.window} tokens that it reads "
            f"and are cut; the longest has {max(self.lengths.values(), default=0)}"
        )


_READ: dict[str, ReadTexts] = {}


def note_texts(reader: str, texts: Iterable[str], window: int, lengths: Callable[[list[str]], list[int]]) -> None:
    """Count texts that a model is about to read, and warn when it truncates one for the first time.

    Args:
        reader: name in the report, such as the name of a reward.
        window: maximum number of tokens of a text.
        lengths: returns the number of tokens of each text, including tokens that the model adds.
    """
    read = _READ.setdefault(reader, ReadTexts(window))
    if not (new := [text for text in dict.fromkeys(texts) if text not in read.lengths]):
        return
    before = read.truncated
    read.lengths.update(zip(new, lengths(new), strict=True))
    if read.truncated and not before:
        log.warning("%s: %s", reader, read)


def report_texts(log_line: Callable[[str], object]) -> dict[str, int]:
    """Numbers of texts that models have read and truncated since the last report, as metrics.

    Args:
        log_line: is called with one line for each model that has truncated a text.
    """
    counts: dict[str, int] = {}
    for reader, read in sorted(_READ.items()):
        counts |= {f"texts.{reader}.{name}": n for name, n in (("read", len(read.lengths)), ("cut", read.truncated))}
        if read.truncated:
            counts[f"texts.{reader}.longest"] = max(read.lengths.values())
            log_line(f"{reader}: {read}")
    forget_texts()
    return counts


def forget_texts() -> None:
    """Reset the counts."""
    _READ.clear()
