"""Byte-pair vocabularies learnt from the world's own sentences, so that each of its words is one token."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX


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
    """A larger vocabulary in which every word of ``texts`` is one token, too; what was one token stays it.

    New merges come last, so that they touch only what the old ones leave in pieces.
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
