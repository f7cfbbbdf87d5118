"""Losses against float64 references, written from the equations of their papers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paco_core.grpo.dynamics import DYNAMICS, Step, Transition
from paco_core.grpo.losses import (
    LOSSES,
    OLD_DECAYS,
    LossInputs,
    NftInputs,
    PairErrors,
    dpo,
    gaussian_kl,
    nft,
    sft,
)
from tests.unit.grpo.test_dynamics import STEPS, Array, gaussian_log_density, paper_transition

SEEDS = st.integers(0, 1000)


def clipped(ratio: Array, advantages: Array, clip_range: float) -> Array:
    return np.maximum(-advantages * ratio, -advantages * np.clip(ratio, 1 - clip_range, 1 + clip_range))


@given(seed=SEEDS, clip_range=st.floats(1e-4, 0.5), moved=st.sampled_from([0.0, 1e-4, 0.3]))
def test_ppo_and_its_gradient(seed: int, clip_range: float, moved: float) -> None:
    log_prob, old, advantages = np.random.default_rng(seed).standard_normal((3, 6)) * [[moved], [1.0], [2.0]]
    trained = torch.tensor(old + log_prob, requires_grad=True)
    transition = Transition(torch.zeros(6, 1, 1), 0.5)
    terms = LOSSES["ppo"].function(
        LossInputs(
            trained, torch.tensor(old), torch.tensor(advantages), clip_range, Step(0.8, 0.6, 0.9, 0.7), transition, 2.0
        )
    )
    ratio = np.exp(trained.detach().numpy() - old)
    np.testing.assert_allclose(terms.ratio.detach().numpy(), ratio)
    np.testing.assert_allclose(terms.loss.detach().numpy(), clipped(ratio, advantages, clip_range))
    terms.loss.sum().backward()
    beyond = np.where(advantages > 0, ratio > 1 + clip_range, ratio < 1 - clip_range)
    np.testing.assert_allclose(trained.grad, np.where(beyond, 0, -advantages * ratio))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(DYNAMICS))
@given(step=STEPS, seed=SEEDS, clip_range=st.floats(1e-4, 0.5))
def test_guard(name: str, step: Step, seed: int, clip_range: float) -> None:
    """Each sample alone, by the Gaussian's log-probability, whatever the dynamics takes for its own."""
    rng = np.random.default_rng(seed)
    x, v, xi = rng.standard_normal((3, 3, 4, 2))
    other, advantages = v + 0.1 * rng.standard_normal(v.shape), rng.standard_normal(3)
    dynamics = DYNAMICS[name]
    old, new = (dynamics.transition(torch.from_numpy(x), torch.from_numpy(velocity), step) for velocity in (v, other))
    (mu_old, s), (mu, _) = (paper_transition(name, x, velocity, step) for velocity in (v, other))
    x_next = mu_old + s * xi
    log_ratio = gaussian_log_density(x_next, mu, s) - gaussian_log_density(x_next, mu_old, s)
    ratio = np.exp((log_ratio + ((mu - mu_old) ** 2).mean(axis=(1, 2)) / (2 * s**2)) * s)
    inputs = LossInputs(
        log_prob=dynamics.log_prob(torch.from_numpy(x_next), new),
        old_log_prob=dynamics.log_prob(torch.from_numpy(x_next), old),
        advantages=torch.from_numpy(advantages),
        clip_range=clip_range,
        step=step,
        transition=new,
        error_weight=dynamics.error_weight(new.std),
        old_mean=old.mean,
    )
    terms = LOSSES["grpo_guard"].function(inputs)
    np.testing.assert_allclose(terms.ratio, ratio, rtol=1e-6)
    expected = clipped(ratio, advantages, clip_range) / (step.sigma - step.sigma_next)
    np.testing.assert_allclose(terms.loss, expected, rtol=1e-6)
    with pytest.raises(ValueError, match="means"):
        LOSSES["grpo_guard"].function(replace(inputs, old_mean=None))


def plain_nft(
    clean: Array, noised: Array, velocity: Array, old: Array, sigma: float, advantages: Array, limit: float, mix: float
) -> tuple[Array, Array]:
    """The loss of each sample, and its gradient by the velocity."""
    share = np.clip(advantages / (2 * limit) + 0.5, 0, 1)
    loss, gradient = np.zeros(len(clean)), np.zeros_like(velocity)
    for part, sign in ((share, 1), (1 - share, -1)):
        residual = noised - sigma * (old + sign * mix * (velocity - old)) - clean
        scale = np.maximum(np.abs(residual).mean(axis=(1, 2)), 1e-5)  # takes no gradient
        loss += limit / mix * part * (residual**2).mean(axis=(1, 2)) / scale
        gradient_term = 2 * residual / residual[0].size * -sigma * sign * mix
        gradient += limit / mix * (part / scale)[:, None, None] * gradient_term
    return loss, gradient


@given(
    seed=SEEDS, sigma=st.floats(0.05, 1.0), limit=st.floats(0.5, 5.0), mix=st.floats(0.05, 1.0),
    miss=st.sampled_from([1.0, 1e-4, 1e-6, 0.0]),
)  # fmt: skip
def test_nft_and_its_gradient(seed: int, sigma: float, limit: float, mix: float, miss: float) -> None:
    """``miss`` is the distance of the clean sample: both losses stay finite where the prediction is exact."""
    rng = np.random.default_rng(seed)
    advantages = rng.uniform(-2 * limit, 2 * limit, 4)
    clean, old, velocity, error = rng.standard_normal((4, 4, 3, 2))
    velocity = old + miss * (velocity - old)
    noised = clean + sigma * old + miss * error
    loss, gradient = plain_nft(clean, noised, velocity, old, sigma, advantages, limit, mix)
    tensors = [torch.tensor(array) for array in (clean, noised, velocity, old)]
    tensors[2].requires_grad_()
    mine = nft(NftInputs(*tensors, sigma, torch.tensor(advantages), limit, mix))
    np.testing.assert_allclose(mine.detach(), loss, rtol=1e-7, atol=1e-12)
    mine.sum().backward()
    np.testing.assert_allclose(tensors[2].grad, gradient, rtol=1e-6, atol=1e-9)  # type: ignore[arg-type]


@given(seed=SEEDS, beta=st.floats(0.1, 100.0))
def test_dpo_and_sft_and_their_gradients(seed: int, beta: float) -> None:
    errors = np.random.default_rng(seed).uniform(0.0, 1.0, (4, 5))
    best, worst, best_reference, worst_reference = errors
    inside = -beta / 2 * ((best - best_reference) - (worst - worst_reference))
    tensors = [torch.tensor(row, requires_grad=True) for row in errors]
    pairs = PairErrors(*tensors)
    np.testing.assert_allclose(pairs.margin.detach(), worst - worst_reference - best + best_reference, atol=1e-12)
    loss = dpo(pairs, beta)
    np.testing.assert_allclose(loss.detach(), np.log1p(np.exp(-inside)), rtol=1e-9)
    loss.sum().backward()
    pull = beta / 2 / (1 + np.exp(inside))
    for tensor, expected in zip(tensors[:2], (pull, -pull), strict=True):
        np.testing.assert_allclose(tensor.grad, expected, rtol=1e-9)  # type: ignore[arg-type]
    np.testing.assert_array_equal(sft(pairs, beta).detach(), best)


@given(step=STEPS, seed=SEEDS, std=st.floats(0.01, 1.0))
def test_kl_of_two_gaussians(step: Step, seed: int, std: float) -> None:
    """``paper`` divides by the squared noise rate s_t, and s = s_t sqrt(-d)."""
    mean, reference = np.random.default_rng(seed).standard_normal((2, 3, 4, 2))
    tensors = torch.from_numpy(mean), torch.from_numpy(reference)
    normals = [torch.distributions.Normal(tensor, std) for tensor in tensors]
    exact = torch.distributions.kl_divergence(*normals).mean(dim=(1, 2)).numpy()
    rate = std / np.sqrt(step.sigma - step.sigma_next)
    paper = ((mean - reference) ** 2).mean(axis=(1, 2)) / (2 * rate**2)
    for form, expected in (("exact", exact), ("paper", paper)):
        actual = gaussian_kl(*tensors, Transition(tensors[0], std), step, form)  # type: ignore[arg-type]
        np.testing.assert_allclose(actual, expected, rtol=1e-9)


def test_decay_schedules() -> None:
    late = OLD_DECAYS["late"]
    assert [late.at(n) for n in (0, 74, 75, 77, 1000)] == pytest.approx([0, 0, 0, 0.015, 0.999])
    assert [OLD_DECAYS["slow"].at(n) for n in (1, 100, 900)] == pytest.approx([0.001, 0.1, 0.5])
    assert OLD_DECAYS["on_policy"].at(500) == 0
