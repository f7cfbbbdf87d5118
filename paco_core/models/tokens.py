"""Tokenizers and a person's words: marks that a tokenizer would read in them, and texts that a model cuts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from paco_core.io.files import DataError

log = logging.getLogger("paco.texts")


def validate_tokens(tokenizer: Any, text: str) -> None:
    """Compare a person's text with the tokens of their own meaning that a tokenizer knows, such as ``<|im_end|>``.

    :func:`paco_core.io.text.validate_marks` refuses those of the supported models where a text comes in. Here the
    tokenizer itself decides, which may know other marks.

    Args:
        tokenizer: of transformers; another kind has no such list.

    Raises:
        DataError: with the mark and the beginning of the text.
    """
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    plain = text if normalizer is None else normalizer.normalize_str(text)
    for token in getattr(tokenizer, "added_tokens_decoder", {}).values():
        if (token.special or "<" in token.content) and token.content in (plain if token.normalized else text):
            raise DataError(
                f"the text contains {token.content}, which {tokenizer.name_or_path or 'the model'} reads as a mark of "
                f"its template: {text[:80]!r}; remove it"
            )


def validate_prompts(pipeline: Any, prompts: Iterable[str]) -> None:
    """Call :func:`validate_tokens` with each tokenizer of a diffusers pipeline and each prompt."""
    names = [name for name in pipeline.components if name.startswith("tokenizer")]
    tokenizers = [pipeline.components[name] for name in names]
    for prompt, tokenizer in product(prompts, tokenizers):
        validate_tokens(tokenizer, prompt)


def token_counts(tokenizer: Any, texts: list[str]) -> list[int]:
    """Tokens of each text, those included that the tokenizer of transformers adds."""
    return [len(ids) for ids in tokenizer(texts, truncation=False, verbose=False)["input_ids"]]


@dataclass(frozen=True)
class ReadTexts:
    """Distinct texts that a model has read, each with its tokens; it reads no more than ``window`` of each."""

    window: int
    lengths: dict[str, int] = field(default_factory=dict)

    @property
    def cut(self) -> int:
        """How many texts are longer."""
        return sum(length > self.window for length in self.lengths.values())

    def __str__(self) -> str:
        return (
            f"{self.cut} of {len(self.lengths)} texts are longer than the {self.window} tokens that it reads and are "
            f"cut; the longest has {max(self.lengths.values(), default=0)}"
        )


_READ: dict[str, ReadTexts] = {}


def note_texts(reader: str, texts: Iterable[str], window: int, lengths: Callable[[list[str]], list[int]]) -> None:
    """Count texts that a model is about to read, and warn when it cuts one for the first time.

    Args:
        reader: what the count is reported by, such as the name of a reward.
        window: tokens that it reads of a text.
        lengths: tokens of each text, those included that the model adds.
    """
    read = _READ.setdefault(reader, ReadTexts(window))
    if not (new := [text for text in dict.fromkeys(texts) if text not in read.lengths]):
        return
    before = read.cut
    read.lengths.update(zip(new, lengths(new), strict=True))
    if read.cut and not before:
        log.warning("%s: %s", reader, read)


def report_texts(say: Callable[[str], object]) -> dict[str, int]:
    """Counts of the texts that models have read since the last report, and of those that were cut, as metrics.

    Args:
        say: is called with one line for each model that has cut a text.
    """
    counts: dict[str, int] = {}
    for reader, read in sorted(_READ.items()):
        counts |= {f"texts.{reader}.{name}": n for name, n in (("read", len(read.lengths)), ("cut", read.cut))}
        if read.cut:
            counts[f"texts.{reader}.longest"] = max(read.lengths.values())
            say(f"{reader}: {read}")
    forget_texts()
    return counts


def forget_texts() -> None:
    """Begin to count from zero."""
    _READ.clear()
