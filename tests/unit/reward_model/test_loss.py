"""The answer loss against a slow reference written from the formulas."""

from __future__ import annotations

import pytest
import torch

from paco_core.reward_model.loss import BatchAnswers, answer_loss, example_weights, token_weights

KINDS = ("weighted", "legacy", "plain")
VOCABULARY = 11


def reference(logits: torch.Tensor, labels: torch.Tensor, kind: str, alpha: float) -> list[torch.Tensor]:
    """Loss of each row, token by token, from full logits (batch, length, vocabulary)."""
    losses = []
    for row in range(len(labels)):
        places = [t for t in range(labels.shape[1]) if labels[row, t] != -100]
        log_p = [torch.log_softmax(logits[row, t - 1], -1)[labels[row, t]] for t in places]
        n = len(log_p)
        if kind == "plain":
            loss = -sum(log_p) / n
        elif kind == "legacy":
            loss = -((alpha / n if n > 1 else 0.0) * log_p[0] + (1 - alpha) / max(n - 1, 1) * sum(log_p[1:]))
        elif n == 1:
            loss = -log_p[0]
        else:
            loss = -(alpha * log_p[0] + (1 - alpha) / (n - 1) * sum(log_p[1:]))
        losses.append(loss)
    return losses


def batch(lengths: list[int]) -> torch.Tensor:
    """Labels: two prompt tokens, an answer of each length, padding."""
    labels = torch.full((len(lengths), max(lengths) + 2), -100)
    generator = torch.Generator().manual_seed(0)
    for row, n in enumerate(lengths):
        labels[row, 2 : 2 + n] = torch.randint(VOCABULARY, (n,), generator=generator)
    return labels


def locate(labels: torch.Tensor) -> BatchAnswers:
    """The answer tokens of labels (batch, length) with -100 outside the answer."""
    is_answer = labels != -100
    row, position = is_answer.nonzero(as_tuple=True)
    first = torch.cat([torch.ones(1, dtype=torch.bool), row[1:] != row[:-1]])
    return BatchAnswers(row, position - 1, labels[row, position], first, is_answer.sum(1)[row])


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_equals_the_slow_reference(kind: str) -> None:
    labels = batch([1, 2, 100, 7])
    logits = torch.randn(*labels.shape, VOCABULARY, generator=torch.Generator().manual_seed(1))
    grads = []
    for fast in (True, False):
        leaf = logits.clone().requires_grad_()
        if fast:
            answers = locate(labels)
            losses = answer_loss(leaf[answers.row, answers.position], answers, kind, 0.1)  # type: ignore[arg-type]
        else:
            losses = torch.stack(reference(leaf, labels, kind, 0.1))
        losses.mean().backward()
        assert torch.isfinite(losses).all()
        grads.append((losses.detach(), leaf.grad))
    torch.testing.assert_close(grads[0][0], grads[1][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grads[0][1], grads[1][1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
def test_the_decision_token_holds_the_share_alpha_and_over_n_in_legacy(alpha: float) -> None:
    for n in (2, 100):
        first, count = torch.arange(n) == 0, torch.full((n,), n)
        weights = token_weights(first, count, "weighted", alpha)
        assert float(weights[0]) == pytest.approx(alpha) and float(weights.sum()) == pytest.approx(1.0)
        legacy = token_weights(first, count, "legacy", alpha)
        assert float(legacy[0]) == pytest.approx(alpha / n) and float(legacy[1:].sum()) == pytest.approx(1 - alpha)


def as_released(nll: list[list[float]], alpha: float) -> float:
    """A micro-batch's loss by the released trainer, in float32 as there: weights by token, divided by the tokens."""
    total = 0.0
    for row in nll:
        n = torch.tensor(float(len(row)))
        reason_sum = n * (1 - alpha) / torch.clamp(n - 1, min=1e-8)
        weights = reason_sum.repeat(len(row))
        weights[0] += alpha - reason_sum
        total += float(weights @ torch.tensor(row))
    return total / sum(map(len, nll))


@pytest.mark.parametrize("lengths", [[1], [1, 2, 100, 7], [25, 25]])
def test_legacy_averaged_by_token_is_the_released_loss(lengths: list[int]) -> None:
    labels = batch(lengths)
    logits = torch.randn(*labels.shape, VOCABULARY, generator=torch.Generator().manual_seed(2))
    answers = locate(labels)
    losses = answer_loss(logits[answers.row, answers.position], answers, "legacy", 0.1)
    weights, total = example_weights([lengths], "token")
    nll = [
        [float(-torch.log_softmax(logits[row, t - 1], -1)[labels[row, t]]) for t in range(2, 2 + n)]
        for row, n in enumerate(lengths)
    ]
    assert float((losses * torch.tensor(weights[0])).sum() / total) == pytest.approx(as_released(nll, 0.1), rel=1e-5)


def test_what_examples_count_by() -> None:
    weights, total = example_weights([[1, 3], [2]], "token")
    assert weights == [[0.25, 0.75], [1.0]] and total == 2
    weights, total = example_weights([[1, 3], [2]], "example")
    assert weights == [[1.0, 1.0], [1.0]] and total == 3
