"""Aggregators by their definitions; all of them end in advantages of zero group mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paco_core.grpo.advantages import advantages
from paco_core.rewards.aggregation import AGGREGATORS, _named, aggregate, variation

CONSISTENCY = np.array([[0.2, 0.4, 0.9, 0.5], [0.6, 0.6, 0.1, 0.7]])
CLIP = np.array([[0.30, 0.31, 0.29, 0.33], [0.28, 0.30, 0.30, 0.35]])
REWARDS = {"consistency": CONSISTENCY, "clip_t": CLIP}
WEIGHTS = {"consistency": 1.0, "clip_t": 2.0}


@pytest.mark.parametrize("std", ["group", "global"])
@pytest.mark.parametrize("name", sorted(AGGREGATORS))
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), failed=st.integers(0, 3), constant=st.booleans())
def test_every_aggregator_gives_zero_group_mean(name: str, std: str, seed: int, failed: int, constant: bool) -> None:
    rng = np.random.default_rng(seed)
    rewards = {n: rng.uniform(0.05, 1.0, (3, 6)) for n in REWARDS}
    if constant:
        for values in rewards.values():
            values[1] = 0.3
    for _ in range(failed):
        rewards["clip_t"][rng.integers(3), rng.integers(6)] = np.nan
    result = advantages(aggregate(rewards, WEIGHTS, name), std)  # type: ignore[arg-type]
    lost = np.isnan(rewards["clip_t"])
    assert np.isfinite(result.values).all()
    assert np.abs(result.values.mean(axis=1)).max() < 1e-8
    assert (result.values[lost] == 0).all() and result.failed == lost.sum()
    if constant:
        assert (result.values[1] == 0).all() and result.zero_std_groups == 1
    else:
        assert (result.values[~lost] != 0).any()


def test_weighted_sum_and_its_two_normalisations() -> None:
    total = CONSISTENCY + 2 * CLIP
    centred = total - total.mean(axis=1, keepdims=True)
    combined = aggregate(REWARDS, WEIGHTS, "weighted_sum")
    by_group = advantages(combined, "group").values
    assert np.allclose(by_group, centred / total.std(axis=1, keepdims=True))
    assert np.allclose(advantages(combined, "global").values, centred / total.std())


def test_the_global_deviation_is_of_the_rewards_not_of_what_is_left_in_each_group() -> None:
    """Groups of different means: the deviation over all samples holds what is between the groups, too."""
    apart = {"a": np.array([[0.1, 0.3], [0.6, 1.0]])}
    centred = np.array([[-0.1, 0.1], [-0.2, 0.2]])
    deviation = np.std([0.1, 0.3, 0.6, 1.0])
    summed = aggregate(apart, {"a": 1.0}, "weighted_sum")
    assert np.allclose(advantages(summed, "global").values, centred / deviation)
    assert np.allclose(advantages(summed, "group").values, np.sign(centred))
    each = aggregate(apart, {"a": 1.0}, "weighted_advantage_sum_global")
    assert np.allclose(advantages(each, "group").values, centred / deviation)
    batch = aggregate(apart, {"a": 1.0}, "gdpo")
    assert np.allclose(advantages(batch, "group").values, np.sign(centred))


def test_gdpo_and_the_global_deviation_leave_failed_samples_out() -> None:
    """By definition over the samples that all rewards scored; the failed one gets 0."""
    rewards = {"a": np.array([[0.1, 0.4, 0.9], [0.2, 0.3, 0.8]]), "b": np.array([[0.5, 0.1, 0.3], [0.2, 0.9, np.nan]])}
    weights, groups = {"a": 1.0, "b": 2.0}, ([0, 1, 2], [0, 1])
    each, total = [], []
    for row, known in enumerate(groups):
        scores = {name: values[row, known] for name, values in rewards.items()}
        each.append(sum(weights[n] * (r - r.mean()) / r.std() for n, r in scores.items()))
        total.append(sum(weights[n] * r for n, r in scores.items()))
    scale = np.concatenate([one - one.mean() for one in each]).std()
    gdpo = advantages(aggregate(rewards, weights, "gdpo"), "group")
    assert gdpo.failed == 1 and gdpo.values[1, 2] == 0
    for row, known in enumerate(groups):
        assert gdpo.values[row, known] == pytest.approx((each[row] - each[row].mean()) / scale)
    summed = advantages(aggregate(rewards, weights, "weighted_sum"), "global")
    for row, known in enumerate(groups):
        expected = (total[row] - total[row].mean()) / np.concatenate(total).std()
        assert summed.values[row, known] == pytest.approx(expected)
    spread = {name: np.nanstd(np.where(np.isnan(rewards["b"]), np.nan, values)) for name, values in rewards.items()}
    whole = aggregate(rewards, weights, "weighted_advantage_sum_global")
    for row, known in enumerate(groups):
        parts = [weights[n] * (r[row, known] - r[row, known].mean()) / spread[n] for n, r in rewards.items()]
        assert whole.values[row, known] == pytest.approx(sum(parts))


def test_log_tame_tames_what_varies_more_than_delta() -> None:
    combined = aggregate(REWARDS, WEIGHTS, "log_tame", 0.2)
    assert combined.variation["consistency"] == pytest.approx(CONSISTENCY.std() / CONSISTENCY.mean())
    assert combined.tamed == {"consistency": True, "clip_t": False}
    assert np.allclose(combined.values, np.log1p(CONSISTENCY) + 2 * CLIP)


def test_a_sample_that_one_reward_failed_counts_in_no_variation() -> None:
    """Without the failed sample, `a` does not vary: it is not tamed."""
    rewards = {"a": np.array([[0.2, 0.2, 0.2, 9.0]]), "b": np.array([[0.5, 0.6, 0.4, np.nan]])}
    found = aggregate(rewards, {"a": 1.0, "b": 1.0}, "log_tame", 0.1)
    assert found.variation["a"] == pytest.approx(0.0) and found.tamed == {"a": False, "b": True}
    assert found.variation["b"] == pytest.approx(np.std([0.5, 0.6, 0.4]) / 0.5)
    watched = aggregate({**rewards, "a": rewards["a"] * 2}, {"a": 0.0, "b": 1.0}, "weighted_sum")
    assert watched.variation["a"] == pytest.approx(0.0)
    assert np.isnan(variation(np.array([[0.1, -0.1], [0.3, -0.1 - 0.2]])))  # a mean of 0 up to rounding


@pytest.mark.parametrize("delta", ["mean", "median"])
def test_log_tame_delta_from_the_batch(delta: str) -> None:
    combined = aggregate(REWARDS, WEIGHTS, "log_tame", delta)  # type: ignore[arg-type]
    assert combined.tamed == {"consistency": True, "clip_t": False}


def test_log_tame_tells_the_mean_from_the_median() -> None:
    """h = 0.1, 0.2, 0.25: two vary more than their mean, one more than their median."""
    rewards = {str(h): np.array([[1 - h, 1 + h]]) for h in (0.1, 0.2, 0.25)}
    weights = dict.fromkeys(rewards, 1.0)
    assert [*aggregate(rewards, weights, "log_tame", "mean").tamed.values()] == [False, True, True]
    assert [*aggregate(rewards, weights, "log_tame", "median").tamed.values()] == [False, False, True]


@pytest.mark.parametrize("values", [[[-1.0, 0.5]], [[-0.4, 0.1]], [[-1.0, 5.0]], [[-0.5, 0.5]]])
def test_log_tame_refuses_what_it_cannot_tame(values: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="pickscore"):
        aggregate({"pickscore": np.array(values)}, {"pickscore": 1.0}, "log_tame")


def test_means_and_ranks_by_hand() -> None:
    geometric = aggregate(REWARDS, WEIGHTS, "geometric_mean").values
    assert np.allclose(geometric, (CONSISTENCY * CLIP**2) ** (1 / 3))
    harmonic = aggregate(REWARDS, WEIGHTS, "harmonic_mean").values
    assert np.allclose(harmonic, 3 / (1 / CONSISTENCY + 2 / CLIP))
    rank = aggregate({"consistency": CONSISTENCY}, {"consistency": 1.0}, "rank").values
    assert rank.tolist() == [[1, 2, 4, 3], [2.5, 2.5, 1, 4]]
    with pytest.raises(ValueError, match="positive"):
        aggregate({"a": np.array([[0.0, 1.0]])}, {"a": 1.0}, "harmonic_mean")
    for rule in ("geometric_mean", "harmonic_mean"):
        with pytest.raises(ValueError, match=rule):
            aggregate(REWARDS, {"consistency": 1.0, "clip_t": -1.0}, rule)


def test_advantage_sums_by_hand() -> None:
    def unit(values: np.ndarray) -> np.ndarray:
        return (values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, keepdims=True)

    total = unit(CONSISTENCY) + 2 * unit(CLIP)
    summed = advantages(aggregate(REWARDS, WEIGHTS, "weighted_advantage_sum"), "group").values
    assert np.allclose(summed, total)
    centred = {"c": CONSISTENCY - CONSISTENCY.mean(1)[:, None], "t": CLIP - CLIP.mean(1)[:, None]}
    released = centred["c"] / CONSISTENCY.std() + 2 * centred["t"] / CLIP.std()
    by_all = advantages(aggregate(REWARDS, WEIGHTS, "weighted_advantage_sum_global"), "group").values
    assert np.allclose(by_all, released)
    gdpo = advantages(aggregate(REWARDS, WEIGHTS, "gdpo"), "group").values
    assert np.allclose(gdpo, total / total.std())
    mo_grpo = advantages(aggregate(REWARDS, WEIGHTS, "mo_grpo"), "group").values
    direct = CONSISTENCY / CONSISTENCY.std(axis=1, keepdims=True) + 2 * CLIP / CLIP.std(axis=1, keepdims=True)
    assert np.allclose(mo_grpo, unit(direct))


def test_failed_samples_do_not_move_the_others() -> None:
    rewards = {"a": np.array([[0.1, 0.5, 0.9, np.nan]])}
    result = advantages(aggregate(rewards, {"a": 1.0}, "weighted_sum"), "group")
    expected = advantages(aggregate({"a": np.array([[0.1, 0.5, 0.9]])}, {"a": 1.0}, "weighted_sum"), "group")
    assert np.allclose(result.values[0, :3], expected.values[0]) and result.values[0, 3] == 0
    assert variation(rewards["a"]) == pytest.approx(variation(np.array([0.1, 0.5, 0.9])))


def test_group_of_failures_has_advantage_zero() -> None:
    rewards = {"a": np.array([[np.nan, np.nan], [0.2, 0.4]])}
    result = advantages(aggregate(rewards, {"a": 1.0}, "weighted_sum"), "group")
    assert result.values[0].tolist() == [0.0, 0.0] and result.failed == 2


def test_a_reward_of_weight_zero_is_watched_only() -> None:
    rewards = {"a": CONSISTENCY, "b": np.full_like(CONSISTENCY, np.nan)}
    combined = aggregate(rewards, {"a": 1.0, "b": 0.0}, "log_tame")
    assert not np.isnan(combined.values).any() and set(combined.variation) == {"a", "b"}


def test_clear_errors() -> None:
    with pytest.raises(ValueError, match="log_tame"):
        aggregate(REWARDS, WEIGHTS, "log_tam")
    with pytest.raises(ValueError, match="weights"):
        aggregate(REWARDS, {"consistency": 1.0}, "weighted_sum")
    with pytest.raises(ValueError, match="weight 0"):
        aggregate(REWARDS, {"consistency": 0.0, "clip_t": 0.0}, "weighted_sum")


def weakest(rewards: dict[str, np.ndarray], weights: dict[str, float]) -> np.ndarray:
    """The user's own: the worst weighted reward of each sample."""
    return np.min([weights[name] * values for name, values in rewards.items()], axis=0)


def torn(rewards: dict[str, np.ndarray], weights: dict[str, float]) -> np.ndarray:
    return rewards["clip_t"][0]


def in_place(rewards: dict[str, np.ndarray], weights: dict[str, float]) -> np.ndarray:
    rewards["clip_t"] += 1
    return rewards["clip_t"]


def test_an_aggregator_that_changes_its_arguments_changes_nothing_else() -> None:
    function = _named(f"{__name__}:in_place")
    rewards = {name: values.copy() for name, values in REWARDS.items()}
    assert np.array_equal(function.combine(rewards, WEIGHTS, {}), REWARDS["clip_t"] + 1)
    assert all(np.array_equal(rewards[name], REWARDS[name]) for name in rewards)


def test_an_aggregator_of_the_user() -> None:
    combined = aggregate(REWARDS, WEIGHTS, f"{__name__}:weakest")
    assert np.array_equal(combined.values, weakest(REWARDS, WEIGHTS)) and combined.scale == "recipe"
    assert np.allclose(advantages(combined, "group").values.mean(axis=1), 0, atol=1e-9)
    with pytest.raises(ValueError, match="torn returned shape"):
        aggregate(REWARDS, WEIGHTS, f"{__name__}:torn")
    with pytest.raises(ValueError, match="no 'weekest'"):
        aggregate(REWARDS, WEIGHTS, f"{__name__}:weekest")
