"""The answer loss: cross-entropy over answer tokens, in which the decision token holds a chosen share.

For an answer y_0 .. y_{n-1} (y_0 is "Yes" or "No", the last is the closing token), per example:

    weighted  -[alpha log p(y_0) + (1 - alpha)/(n - 1) sum_{i>=1} log p(y_i)],  n = 1: -log p(y_0)
              (PaCo-RL, arXiv 2512.04784): y_0 holds the share alpha whatever the length
    legacy    -[alpha/n log p(y_0) + (1 - alpha)/(n - 1) sum_{i>=1} log p(y_i)],  n = 1: nothing (below)
              as the released weights were trained (SFT trainer of PaCo-Reward's code): y_0 holds about alpha/n
    plain     -[sum_i log p(y_i)] / n

The released code takes n(1 - alpha)/1e-8 and its negative plus alpha for n = 1: in float32 an answer of one token
then counts nothing for an alpha of up to 0.7, and legacy does as it does.

Examples count alike; with ``average: token`` each counts by its n, as in the released code (:func:`shares`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

LossKind = Literal["weighted", "legacy", "plain"]
Average = Literal["example", "token"]


@dataclass(frozen=True)
class BatchAnswers:
    """The answer tokens of a batch, flat: where each is predicted, and what it is.

    All tensors have shape (m,), m = answer tokens of the batch.
    """

    row: torch.Tensor  # example it belongs to
    position: torch.Tensor  # position whose state predicts it (one before its own)
    target: torch.Tensor  # token id
    first: torch.Tensor  # whether it is y_0
    count: torch.Tensor  # n of its example


def token_weights(first: torch.Tensor, count: torch.Tensor, kind: LossKind, alpha: float) -> torch.Tensor:
    """Weight of each answer token within its example; float32 (m,), as ``first`` (bool) and ``count`` (int64) are."""
    n = count.float()
    if kind == "plain":
        return 1.0 / n
    rest = (1.0 - alpha) / (n - 1).clamp(min=1)
    if kind == "legacy":
        others = n * (1.0 - alpha) / (n - 1).clamp(min=1e-8)  # in these steps: what they round to is part of it
        return torch.where(first, (others + (alpha - others)) / n, rest)
    return torch.where(n == 1, 1.0, torch.where(first, alpha, rest))


def answer_loss(logits: torch.Tensor, answers: BatchAnswers, kind: LossKind, alpha: float) -> torch.Tensor:
    """Loss of each example, float32 (batch,), from the logits (m, vocabulary) of answer positions only."""
    nll = functional.cross_entropy(logits.float(), answers.target, reduction="none")
    weights = token_weights(answers.first, answers.count, kind, alpha)
    examples = int(answers.row[-1]) + 1
    return torch.zeros(examples, device=logits.device).index_add(0, answers.row, nll * weights)


def shares(counts: Sequence[Sequence[int]], average: Average) -> tuple[list[list[float]], int]:
    """What each example of an optimiser step counts, by its micro-batch, and the sum of it all.

    By ``token``, an example counts by its answer tokens within its micro-batch, and micro-batches count alike: the
    released code divides the sum over a micro-batch by its tokens, and accumulates the mean.

    Args:
        counts: answer tokens of each example, by micro-batch.
    """
    if average == "token":
        return [[n / sum(batch) for n in batch] for batch in counts], len(counts)
    return [[1.0] * len(batch) for batch in counts], sum(map(len, counts))
