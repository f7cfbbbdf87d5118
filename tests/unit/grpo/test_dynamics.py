"""Each dynamics against float64 references, written from the equations of its paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paco_core.grpo.dynamics import DYNAMICS, Step, euler, steps_of

Array = np.ndarray[Any, np.dtype[np.float64]]
STEPS = st.builds(
    lambda sigma, share, cap, level: Step(sigma, share * sigma, cap, level),
    st.just(1.0) | st.floats(0.05, 0.95),
    st.floats(0.1, 0.95),
    st.floats(0.5, 0.97),
    st.floats(0.05, 1.0),
)


def paper_transition(name: str, x: Array, v: Array, step: Step) -> tuple[Array, float]:
    """Mean and standard deviation of the next latents."""
    sigma, after, a = step.sigma, step.sigma_next, step.noise_level
    d = after - sigma
    clean, noise = x - sigma * v, x + (1 - sigma) * v  # x = (1 - sigma) clean + sigma noise, v = noise - clean
    if name == "flow_sde":
        rate = a * np.sqrt(sigma / (1 - (step.sigma_cap if sigma == 1 else sigma)))
        return x + (v + rate**2 / (2 * sigma) * noise) * d, float(rate * np.sqrt(-d))
    if name == "cps":
        std = after * np.sin(a * np.pi / 2)
        return (1 - after) * clean + np.sqrt(max(after**2 - std**2, 0)) * noise, float(std)
    score = -(x - (1 - sigma) * clean) / sigma**2
    return x + (v - a**2 / 2 * score) * d, float(a * np.sqrt(-d))


def gaussian_log_density(x_next: Array, mean: Array, std: float) -> Array:
    """Of each sample, the mean over its elements."""
    density = np.exp(-((x_next - mean) ** 2) / (2 * std**2)) / np.sqrt(2 * np.pi * std**2)
    return np.asarray(np.log(density).mean(axis=(1, 2)))


@pytest.mark.parametrize("name", sorted(DYNAMICS))
@given(step=STEPS, seed=st.integers(0, 1000))
def test_a_transition_and_its_log_probability_are_those_of_the_paper(name: str, step: Step, seed: int) -> None:
    x, v, xi = np.random.default_rng(seed).standard_normal((3, 3, 4, 2))
    dynamics, latents, velocity = DYNAMICS[name], torch.from_numpy(x), torch.from_numpy(v)
    transition = dynamics.transition(latents, velocity, step)
    mean, std = paper_transition(name, x, v, step)
    assert transition.std == pytest.approx(std)
    np.testing.assert_allclose(transition.mean.numpy(), mean, atol=1e-9)
    x_next = mean + std * xi
    errors = ((x_next - mean) ** 2).mean(axis=(1, 2))
    expected = -errors if name == "cps" else gaussian_log_density(x_next, mean, std)
    log_prob = dynamics.log_prob(torch.from_numpy(x_next), transition).numpy()
    np.testing.assert_allclose(log_prob, expected, atol=1e-8)
    weighted = -dynamics.error_weight(std) * errors
    np.testing.assert_allclose(log_prob - log_prob[0], weighted - weighted[0], atol=1e-8)
    ode = euler(latents, velocity, step)
    np.testing.assert_allclose(ode.numpy(), x + v * (step.sigma_next - step.sigma), atol=1e-9)
    silent = dynamics.transition(latents, velocity, replace(step, noise_level=1e-9))
    torch.testing.assert_close(silent.mean, ode, rtol=0, atol=1e-6)


def test_steps_carry_the_second_sigma_as_cap() -> None:
    steps = steps_of(torch.tensor([1.0, 0.9, 0.5, 0.0]), 0.7)
    assert [round(s.d, 6) for s in steps] == [-0.1, -0.4, -0.5]
    assert {(round(s.sigma_cap, 6), s.noise_level) for s in steps} == {(0.9, 0.7)}
