"""The answer loss: cross-entropy over answer tokens, with a fixed share for the decision token.

For an answer y_0 .. y_{n-1} (y_0 is "Yes" or "No", the last is the closing token), per example:

    weighted  -[alpha log p(y_0) + (1 - alpha)/(n - 1) sum_{i>=1} log p(y_i)],  n = 1: -log p(y_0)
              (PaCo-RL, arXiv 2512.04784): y_0 has the share alpha for any length
    legacy    -[alpha/n log p(y_0) + (1 - alpha)/(n - 1) sum_{i>=1} log p(y_i)],  n = 1: nothing (below)
              as the released weights were trained (SFT trainer of PaCo-Reward's code): y_0 has about alpha/n
    plain     -[sum_i log p(y_i)] / n

For n = 1, the released code uses n(1 - alpha)/1e-8 and its negative plus alpha. In float32, an answer of one token then
has no weight for an alpha of up to 0.7, and legacy reproduces this.

Examples have equal weights. With ``average: token``, each has the weight n, as in the released code
(:func:`example_weights`).
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
    """The flat answer tokens of a batch: their positions and targets.

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
    reason_weight = (1.0 - alpha) / (n - 1).clamp(min=1)
    if kind == "legacy":
        reason_sum = n * (1.0 - alpha) / (n - 1).clamp(min=1e-8)  # in this order, because rounding is part of it
        return torch.where(first, (reason_sum + (alpha - reason_sum)) / n, reason_weight)
    return torch.where(n == 1, 1.0, torch.where(first, alpha, reason_weight))


def answer_loss(logits: torch.Tensor, answers: BatchAnswers, kind: LossKind, alpha: float) -> torch.Tensor:
    """Loss of each example, float32 (batch,), from the logits (m, vocabulary) of answer positions only."""
    nll = functional.cross_entropy(logits.float(), answers.target, reduction="none")
    weights = token_weights(answers.first, answers.count, kind, alpha)
    examples = int(answers.row[-1]) + 1
    return torch.zeros(examples, device=logits.device).index_add(0, answers.row, nll * weights)


def example_weights(counts: Sequence[Sequence[int]], average: Average) -> tuple[list[list[float]], int]:
    """Weights of the examples of an optimizer step, by micro-batch, and their sum.

    With ``token``, the weight of an example is its share of the answer tokens of its micro-batch, and micro-batches
    have equal weights: the released code averages over the tokens of a micro-batch, then over micro-batches.

    Args:
        counts: number of answer tokens of each example, by micro-batch.
    """
    if average == "token":
        return [[n / sum(batch) for n in batch] for batch in counts], len(counts)
    return [[1.0] * len(batch) for batch in counts], sum(map(len, counts))
