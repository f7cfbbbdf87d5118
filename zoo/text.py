"""Tokenizers of the storybook with one token per word.

The small FLUX's text encoders skip function words, so a 2x2 prompt has at most 40 tokens. The length of the text
determines most of the cost of a small diffusion transformer. The vision-language models use byte pairs of the
storybook's sentences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from paco_core.storybook.prompts import COUNTS, KINDS, PLACES, place_marks
from paco_core.storybook.world import VOCABULARY

MAX_LENGTH = 40
PAD, EOS, UNKNOWN = "<pad>", "</s>", "<unk>"
#: Words that carry no meaning here; they cost time in every attention.
SILENT = ("a", "an", "the", "with", "in", "on", "at", "style", "images", "show", "grid", "layout", "of", "up")


def words_of(texts: Iterable[str]) -> list[str]:
    """The words of some texts, each once and in order, without function words."""
    words: dict[str, None] = {}
    for text in texts:
        for word in re.sub(r"[.,;:]", " ", text.lower()).split():
            if word not in SILENT and "{" not in word:
                words.setdefault(word)
    return list(words)


def vocabulary() -> list[str]:
    """Every word of the storybook's prompts, special tokens first."""
    words: dict[str, None] = {}

    def add(text: str) -> None:
        words.update(dict.fromkeys(words_of([text])))

    for values in VOCABULARY.values():
        add(" ".join(values))
    add(" ".join(PLACES.values()))
    for _, _, opening, theme in KINDS:
        add(f"{opening} {theme}")
    add(" ".join(f"{count}-panel" for count in COUNTS.values()))
    grids = ("1x1", "1x2", "1x3", "1x4", "1x5", "1x6", "1x7", "2x2", "2x3", "3x2", "3x3")
    add(" ".join(grids) + " all")
    for grid in grids:
        rows, columns = (int(n) for n in grid.split("x"))
        add(" ".join(place_marks(rows, columns)))
    return [PAD, EOS, UNKNOWN, *words]


def build_tokenizer(words: Iterable[str] = (), length: int = MAX_LENGTH) -> PreTrainedTokenizerFast:
    """The word tokenizer, with padding to the right and one end token; ``words`` come after the storybook's words."""
    ids = {word: n for n, word in enumerate(dict.fromkeys([*vocabulary(), *words]))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[.,;:]"), " "),
            normalizers.Replace(Regex(rf"(?<![\w-])({'|'.join(SILENT)})(?![\w-])"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, ids[EOS])])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        model_max_length=length,
        padding_side="right",
    )


def grown(rows: torch.Tensor, old_vocabulary: dict[str, int], new_vocabulary: dict[str, int]) -> torch.Tensor:
    """Embeddings (wanted, d): known words keep their embeddings; new words get random ones of the same scale."""
    generator = torch.Generator().manual_seed(0)
    new = torch.randn(len(new_vocabulary), rows.shape[1], generator=generator) * rows.std()
    for word, row in new_vocabulary.items():
        if word in old_vocabulary:
            new[row] = rows[old_vocabulary[word]]
    return new


def learn_byte_pairs(corpus: Iterable[str], size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges over bytes, cut into words as Qwen2 cuts them; foreign text falls back to bytes.

    Learning is greedy until no pair is left or ``size`` entries exist. Ties make it differ from run to
    run, so the files are committed rather than learnt again.
    """
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.NFC()
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(sorted(set(corpus)), trainer)
    learnt = json.loads(learner.to_str())["model"]
    return learnt["vocab"], [(first, second) for first, second in learnt["merges"]]


def with_whole_words(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], texts: Iterable[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A larger vocabulary in which every word of ``texts`` is one token. Existing tokens stay unchanged.

    New merges come last, so they only join the pieces of words that the old merges leave.
    """
    cut = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    vocabulary, merges = dict(vocabulary), list(merges)
    for word in dict.fromkeys(word for text in texts for word, _ in cut.pre_tokenize_str(text)):
        pieces = [token.value for token in Tokenizer(models.BPE(vocabulary, merges)).model.tokenize(word)]
        for piece in pieces[1:]:
            merges.append((pieces[0], piece))
            pieces[0] += piece
            vocabulary.setdefault(pieces[0], len(vocabulary))
    return vocabulary, merges
