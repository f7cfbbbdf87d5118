"""Byte-pair vocabularies learnt from the world's own sentences, so that each of its words is one token."""

from __future__ import annotations

import json
from collections.abc import Iterable


def learn_byte_pairs(corpus: Iterable[str], size: int) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges over bytes, cut into words as Qwen2 cuts them; foreign text falls back to bytes.

    Learning is greedy until no pair is left or ``size`` entries exist. Ties make it differ from run to
    run, so the files are committed rather than learnt again.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

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
