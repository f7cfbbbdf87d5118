"""Losses against their definitions, sample by sample."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from paco_core.grpo.dynamics import DYNAMICS, Step, Transition
from paco_core.grpo.losses import LOSSES, LossInputs, NftInputs, gaussian_kl, nft

STEP = Step(0.8, 0.6, 0.9, 0.7)


def inputs(log_prob: list[float], old: list[float], advantages: list[float]) -> LossInputs:
    return LossInputs(
        torch.tensor(log_prob, requires_grad=True),
        torch.tensor(old),
        torch.tensor(advantages),
        1e-4,
        STEP,
        Transition(torch.zeros(len(old), 1, 1), 0.5),
        2.0,
        torch.zeros(len(old), 1, 1),
    )


def test_ppo_before_an_update_is_minus_the_advantage() -> None:
    terms = LOSSES["ppo"].function(inputs([-1.0, -2.0], [-1.0, -2.0], [1.5, -0.5]))
    assert torch.equal(terms.ratio, torch.ones(2))
    assert torch.allclose(terms.loss, torch.tensor([-1.5, 0.5]))


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss"),
    [(1.0, 1.3, -1.2), (1.0, 1.1, -1.1), (1.0, 0.7, -0.7), (-1.0, 1.3, 1.3), (-1.0, 0.7, 0.8), (-1.0, 0.9, 0.9)],
)
def test_ppo_clips_at_one_plus_and_minus_the_range(advantage: float, ratio: float, loss: float) -> None:
    given = replace(inputs([math.log(ratio)], [0.0], [advantage]), clip_range=0.2)
    terms = LOSSES["ppo"].function(given)
    assert (terms.loss.item(), terms.ratio.item()) == pytest.approx((loss, ratio))


def test_ppo_gradient_vanishes_where_the_ratio_went_its_way_already() -> None:
    given = inputs([-0.9, -0.9, -1.1, -1.1], [-1.0] * 4, [1.0, -1.0, 1.0, -1.0])
    LOSSES["ppo"].function(given).loss.sum().backward()
    gradient = given.log_prob.grad
    assert gradient is not None
    expected = [0.0, math.exp(0.1), -math.exp(-0.1), 0.0]
    assert gradient.tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", DYNAMICS)
def test_guard_equals_the_analytic_ratio_of_each_sample(name: str) -> None:
    torch.manual_seed(0)
    x, v, moved = torch.randn(3, 4, 2), torch.randn(3, 4, 2), torch.randn(3, 4, 2) * 0.1
    dynamics = DYNAMICS[name]
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
            dynamics.error_weight(new.std),
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


def nft_inputs(advantages: list[float], velocity: torch.Tensor, mix: float = 0.5) -> NftInputs:
    torch.manual_seed(0)
    clean, noise = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    old = torch.randn(2, 3, 4)
    return NftInputs(clean, 0.4 * clean + 0.6 * noise, velocity, old, 0.6, torch.tensor(advantages), 5.0, mix)


def test_nft_by_hand() -> None:
    given = nft_inputs([2.0, -5.0], torch.full((2, 3, 4), 0.3), mix=0.25)
    positive = 0.25 * given.velocity + 0.75 * given.old_velocity
    negative = 1.25 * given.old_velocity - 0.25 * given.velocity
    parts = []
    for v in (positive, negative):
        x0 = given.noised - 0.6 * v
        parts.append(((x0 - given.clean) ** 2).mean((1, 2)) / (x0 - given.clean).abs().mean((1, 2)))
    share = torch.tensor([0.7, 0.0])
    assert torch.allclose(nft(given), 5.0 * (share * parts[0] + (1 - share) * parts[1]) / 0.25, rtol=1e-5)


def test_nft_bounds_the_share_of_an_advantage_and_divides_by_a_small_distance() -> None:
    velocity = torch.full((2, 3, 4), 0.3)
    assert torch.equal(nft(nft_inputs([20.0, -20.0], velocity)), nft(nft_inputs([5.0, -5.0], velocity)))
    near = replace(nft_inputs([5.0, 5.0], velocity), old_velocity=velocity)
    near = replace(near, noised=near.clean + near.sigma * velocity + 1e-4)  # misses the clean sample by 1e-4
    assert nft(near).tolist() == pytest.approx([5.0 * 1e-4 / near.mix] * 2, rel=1e-2)


def test_nft_is_finite_where_the_prediction_is_exact() -> None:
    given = nft_inputs([2.0, -2.0], torch.zeros(2, 3, 4))
    exact = torch.full((2, 3, 4), 0.5)
    loss = nft(replace(given, clean=torch.zeros(2, 3, 4), noised=0.6 * exact, velocity=exact, old_velocity=exact))
    assert loss.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_nft_pulls_towards_good_samples_and_away_from_bad_ones() -> None:
    """At v = v_old the gradient is that of the flow matching loss times the advantage's sign, 0 at advantage 0."""
    for advantage, sign in ((3.0, 1.0), (0.0, 0.0), (-3.0, -1.0)):
        given = nft_inputs([advantage, advantage], torch.zeros(2, 3, 4))
        velocity = given.old_velocity.clone().requires_grad_()
        nft(replace(given, velocity=velocity)).sum().backward()
        assert velocity.grad is not None
        supervised = -(given.noised - 0.6 * velocity.detach() - given.clean)  # towards the clean sample
        if sign == 0.0:
            assert velocity.grad.abs().max() < 1e-6
        else:
            assert torch.equal(velocity.grad.sign(), sign * supervised.sign())


@pytest.mark.parametrize("name", sorted(DYNAMICS))
def test_kl_is_that_of_two_gaussians(name: str) -> None:
    torch.manual_seed(1)
    x, v, w = torch.randn(3, 4, 2), torch.randn(3, 4, 2), torch.randn(3, 4, 2)
    ours, reference = (DYNAMICS[name].transition(x, velocity, STEP) for velocity in (v, w))
    normal = torch.distributions.Normal
    pair = normal(ours.mean, ours.std), normal(reference.mean, reference.std)
    expected = torch.distributions.kl_divergence(*pair).flatten(1).mean(1)
    found = gaussian_kl(ours.mean, reference.mean, ours, STEP, "exact")
    assert torch.allclose(found, expected, rtol=1e-4)
    # `paper` divides by the squared noise rate s_t, and s = s_t sqrt(-d).
    assert torch.allclose(gaussian_kl(ours.mean, reference.mean, ours, STEP, "paper"), found * 0.2, rtol=1e-4)
