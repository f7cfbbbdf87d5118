"""Losses against their definitions, sample by sample."""

from __future__ import annotations

import math

import pytest
import torch

from paco_core.grpo.dynamics import DYNAMICS, Step, Transition
from paco_core.grpo.losses import LOSSES, LossInputs

STEP = Step(0.8, 0.6, 0.9, 0.7)


def inputs(log_prob: list[float], old: list[float], advantages: list[float]) -> LossInputs:
    return LossInputs(
        torch.tensor(log_prob, requires_grad=True),
        torch.tensor(old),
        torch.tensor(advantages),
        1e-4,
        STEP,
        Transition(torch.zeros(len(old), 1, 1), 0.5),
        torch.zeros(len(old), 1, 1),
    )


def test_ppo_before_an_update_is_minus_the_advantage() -> None:
    terms = LOSSES["ppo"].function(inputs([-1.0, -2.0], [-1.0, -2.0], [1.5, -0.5]))
    assert torch.equal(terms.ratio, torch.ones(2))
    assert torch.allclose(terms.loss, torch.tensor([-1.5, 0.5]))


def test_ppo_gradient_vanishes_where_the_ratio_went_its_way_already() -> None:
    given = inputs([-0.9, -0.9, -1.1, -1.1], [-1.0] * 4, [1.0, -1.0, 1.0, -1.0])
    LOSSES["ppo"].function(given).loss.sum().backward()
    gradient = given.log_prob.grad
    assert gradient is not None
    expected = [0.0, math.exp(0.1), -math.exp(-0.1), 0.0]
    assert gradient.tolist() == pytest.approx(expected, rel=1e-5)


def test_guard_equals_the_analytic_ratio_of_each_sample() -> None:
    torch.manual_seed(0)
    x, v, moved = torch.randn(3, 4, 2), torch.randn(3, 4, 2), torch.randn(3, 4, 2) * 0.1
    dynamics = DYNAMICS["flow_sde"]
    old, new = dynamics.transition(x, v, STEP), dynamics.transition(x, v + moved, STEP)
    noise = torch.randn(3, 4, 2)
    after = old.mean + old.std * noise

    def terms(rows: slice) -> torch.Tensor:
        given = LossInputs(
            dynamics.log_prob(after, new)[rows],
            dynamics.log_prob(after, old)[rows],
            torch.ones(3)[rows],
            10.0,
            STEP,
            Transition(new.mean[rows], new.std),
            old.mean[rows],
        )
        return LOSSES["grpo_guard"].function(given).ratio

    # log p - log p_old = mean(-(dm)^2 / (2 s^2) + dm xi / s); the drift cancels the first part.
    expected = ((new.mean - old.mean) * noise).flatten(1).mean(1).exp()
    assert torch.allclose(terms(slice(0, 3)), expected, atol=1e-5)
    assert torch.equal(terms(slice(1, 2)), terms(slice(0, 3))[1:2])


def test_guard_without_kept_means_says_so() -> None:
    given = inputs([0.0], [0.0], [1.0])
    with pytest.raises(ValueError, match="means"):
        LOSSES["grpo_guard"].function(LossInputs(**{**given.__dict__, "old_mean": None}))
