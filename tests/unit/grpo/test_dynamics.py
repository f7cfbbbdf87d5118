"""Each dynamics against its definition, and the log-probability against the analytic Gaussian."""

from __future__ import annotations

import math

import pytest
import torch

from paco_core.grpo.dynamics import DYNAMICS, Step, euler, steps_of

X = torch.tensor([[[0.5, -1.0], [2.0, 0.25]], [[1.5, 0.0], [-0.5, 1.0]]])
V = torch.tensor([[[0.1, 0.3], [-0.2, 0.7]], [[-0.4, 0.2], [0.6, -0.1]]])


def test_steps_carry_the_second_sigma_as_cap() -> None:
    steps = steps_of(torch.tensor([1.0, 0.9, 0.5, 0.0]), 0.7)
    assert [round(s.d, 6) for s in steps] == [-0.1, -0.4, -0.5]
    assert {round(s.sigma_cap, 6) for s in steps} == {0.9}


def test_flow_sde_by_hand() -> None:
    step = Step(0.8, 0.6, 0.9, 0.7)
    s_t = 0.7 * math.sqrt(0.8 / 0.2)
    d = 0.6 - 0.8
    found = DYNAMICS["flow_sde"].transition(X, V, step)
    expected = X * (1 + s_t**2 * d / 1.6) + V * (1 + s_t**2 * 0.2 / 1.6) * d
    assert torch.allclose(found.mean, expected, atol=1e-6)
    assert found.std == pytest.approx(s_t * math.sqrt(0.2))


def test_flow_sde_at_sigma_one_uses_the_cap() -> None:
    found = DYNAMICS["flow_sde"].transition(X, V, Step(1.0, 0.9, 0.9, 0.7))
    assert found.std == pytest.approx(0.7 * math.sqrt(1.0 / 0.1) * math.sqrt(0.1))


def test_cps_keeps_the_noise_level_of_the_next_sigma() -> None:
    clean, noise = torch.randn(2, 64, 8), torch.randn(2, 64, 8)
    step = Step(0.8, 0.6, 0.9, 0.5)
    x = (1 - step.sigma) * clean + step.sigma * noise
    found = DYNAMICS["cps"].transition(x, noise - clean, step)
    kept = math.sqrt(0.36 - found.std**2)
    assert found.std == pytest.approx(0.6 * math.sin(math.pi / 4))
    assert torch.allclose(found.mean, 0.4 * clean + kept * noise, atol=1e-5)


def test_cps_log_prob_is_the_negative_squared_error() -> None:
    found = DYNAMICS["cps"].transition(X, V, Step(0.8, 0.6, 0.9, 0.5))
    log_prob = DYNAMICS["cps"].log_prob(found.mean + 0.5, found)
    assert torch.allclose(log_prob, torch.full((2,), -0.25))


def test_dance_sde_by_hand() -> None:
    step = Step(0.8, 0.6, 0.9, 0.3)
    clean = X - 0.8 * V
    expected = X + (V + 0.09 * (X - 0.2 * clean) / (2 * 0.64)) * (0.6 - 0.8)
    found = DYNAMICS["dance_sde"].transition(X, V, step)
    assert torch.allclose(found.mean, expected, atol=1e-6)
    assert found.std == pytest.approx(0.3 * math.sqrt(0.2))


@pytest.mark.parametrize("name", ["flow_sde", "dance_sde"])
def test_log_prob_is_the_mean_gaussian_density(name: str) -> None:
    found = DYNAMICS[name].transition(X, V, Step(0.8, 0.6, 0.9, 0.7))
    x_next = found.mean + found.std * torch.randn_like(X)
    expected = torch.distributions.Normal(found.mean, found.std).log_prob(x_next).flatten(1).mean(1)
    assert torch.allclose(DYNAMICS[name].log_prob(x_next, found), expected, atol=1e-6)


@pytest.mark.parametrize("name", sorted(DYNAMICS))
def test_without_noise_every_dynamics_is_the_ode(name: str) -> None:
    step = Step(0.8, 0.6, 0.9, 1e-9)
    assert torch.allclose(DYNAMICS[name].transition(X, V, step).mean, euler(X, V, step), atol=1e-6)
