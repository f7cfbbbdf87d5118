"""Aggregators and advantages against a plain reference: group by group, over the samples that every reward scored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from paco_core.grpo.advantages import advantages
from paco_core.rewards.aggregation import AGGREGATORS, _custom_aggregator, aggregate, normalize_groups, variation

Array = np.ndarray[Any, np.dtype[np.float64]]
CONSISTENCY = np.array([[0.2, 0.4, 0.9, 0.5], [0.6, 0.6, 0.1, 0.7]])
CLIP = np.array([[0.30, 0.31, 0.29, 0.33], [0.28, 0.30, 0.30, 0.35]])
REWARDS = {"consistency": CONSISTENCY, "clip_t": CLIP}
WEIGHTS = {"consistency": 1.0, "clip_t": 2.0}
NAN = float("nan")


def over(scores: float | Array, std: float) -> Any:
    return scores / max(std, 1e-6)


def plain_advantages(name: str, std: str, rewards: dict[str, Array], weights: dict[str, float], delta: Any) -> Array:
    """The definitions, one group after another; a sample that a reward failed to score is left out, and gets 0."""
    scored = ~np.isnan(sum(rewards.values()))
    groups = [np.flatnonzero(row) for row in scored]

    def in_groups(function: Callable[[Array], Array], values: Array) -> Array:
        result = np.full(values.shape, NAN)
        for row, valid in enumerate(groups):
            if len(valid):
                result[row, valid] = function(values[row, valid])
        return result

    def centred(r: Array) -> Array:
        return r - r.mean() if np.ptp(r) else 0 * r

    def total(function: Callable[[str, Array], Array]) -> Array:
        return np.sum([weights[n] * function(n, r) for n, r in rewards.items()], axis=0)

    def units() -> Array:
        return total(lambda _, r: in_groups(lambda g: over(centred(g), g.std()), r))

    h = {n: r[scored].std() / r[scored].mean() for n, r in rewards.items()}
    bound = {"mean": np.mean, "median": np.median}[delta]([*h.values()]) if isinstance(delta, str) else delta
    weight = sum(weights.values())
    combined = {
        "weighted_sum": lambda: total(lambda _, r: r),
        "log_tame": lambda: total(lambda n, r: np.log(1 + r) if h[n] > bound else r),
        "geometric_mean": lambda: np.prod([r ** weights[n] for n, r in rewards.items()], axis=0) ** (1 / weight),
        "harmonic_mean": lambda: weight / total(lambda _, r: 1 / r),
        "rank": lambda: total(lambda _, r: in_groups(rankdata, r)),
        "weighted_advantage_sum": units,
        "weighted_advantage_sum_global": lambda: total(lambda _, r: over(in_groups(centred, r), r[scored].std())),
        "gdpo": units,
        "mo_grpo": units,
    }[name]()
    result = in_groups(centred, combined)
    if name == "gdpo":
        result = over(result, result[scored].std())
    elif not name.startswith("weighted_advantage"):
        batch_std = combined[scored].std()
        result = in_groups(lambda g: over(centred(g), g.std() if std == "group" else batch_std), combined)
    return np.where(scored, result, 0.0)


@pytest.mark.parametrize("std", ["group", "global"])
@pytest.mark.parametrize("name", sorted(AGGREGATORS))
@given(
    seed=st.integers(0, 1000), failed=st.sets(st.integers(0, 14), max_size=10), constant=st.sets(st.integers(0, 2)),
    weights=st.tuples(st.floats(0.3, 3), st.floats(0.3, 3), st.floats(0.3, 3)),
    delta=st.sampled_from(["mean", "median", 0.2, 0.5]),
)  # fmt: skip
def test_advantages_are_those_of_the_definitions(
    name: str, std: Any, seed: int, failed: set[int], constant: set[int], weights: tuple[float, ...], delta: Any
) -> None:
    rng = np.random.default_rng(seed)
    rewards = {n: rng.uniform(low, 1.0, (3, 5)) for n, low in (("a", 0.05), ("b", 0.4), ("c", 0.7))}
    for values in rewards.values():
        values[list(constant)] = 0.3
    rewards["b"].flat[list(failed)] = NAN
    by_name = dict(zip(rewards, weights, strict=True))
    combined = aggregate(rewards, by_name, name, delta)
    result = advantages(combined, std)
    np.testing.assert_allclose(result.values, plain_advantages(name, std, rewards, by_name, delta), atol=1e-6)
    assert np.abs(result.values.mean(axis=1)).max() < 1e-8 and result.failed == len(failed)
    scored = ~np.isnan(rewards["b"])
    assert result.zero_std_groups == sum(n in constant or row.sum() < 2 for n, row in enumerate(scored))
    for n, values in rewards.items():
        assert combined.variation[n] == pytest.approx(values[scored].std() / values[scored].mean())


def test_groups_without_a_score_have_advantage_zero() -> None:
    for values, failed in (([[NAN, NAN], [0.2, 0.4]], 2), ([[NAN, NAN], [NAN, NAN]], 4)):
        result = advantages(aggregate({"a": np.array(values)}, {"a": 1.0}, "weighted_sum"), "global")
        assert result.values[0].tolist() == [0.0, 0.0] and result.failed == failed
    assert not normalize_groups(np.full((1, 3), 0.1)).any(), "exactly, though the mean is rounded"


def test_log_tame_tells_the_mean_from_the_median() -> None:
    """h = 0.1, 0.2, 0.25: two vary more than their mean, one more than their median and none more than 0.25."""
    rewards = {str(h): np.array([[1 - h, 1 + h]]) for h in (0.1, 0.2, 0.25)}
    weights = dict.fromkeys(rewards, 1.0)
    for delta, tamed in (("mean", [False, True, True]), ("median", [False, False, True]), (0.25, [False] * 3)):
        assert [*aggregate(rewards, weights, "log_tame", delta).tamed.values()] == tamed  # type: ignore[arg-type]


def test_a_sample_that_one_reward_failed_counts_in_no_variation() -> None:
    """Without the failed sample, `a` does not vary: it is not tamed."""
    rewards = {"a": np.array([[0.2, 0.2, 0.2, 9.0]]), "b": np.array([[0.5, 0.6, 0.4, NAN]])}
    assert aggregate(rewards, {"a": 1.0, "b": 1.0}, "log_tame", 0.1).tamed == {"a": False, "b": True}
    watched = aggregate({**rewards, "a": rewards["a"] * 2}, {"a": 0.0, "b": 1.0}, "log_tame")
    assert watched.variation["a"] == pytest.approx(0.0) and set(watched.tamed) == {"b"}
    unscored = aggregate({**rewards, "b": rewards["a"] * NAN}, {"a": 1.0, "b": 0.0}, "log_tame")
    assert not np.isnan(unscored.values).any() and np.isnan(unscored.variation["b"])
    assert np.isnan(variation(np.array([[0.1, -0.1], [0.3, -0.1 - 0.2]])))  # a mean of 0 up to rounding


@pytest.mark.parametrize(
    ("aggregator", "values", "weights"),
    [
        *[("log_tame", values, (1.0, 1.0)) for values in ([-1.0, 0.5], [-0.4, 0.1], [-1.0, 5.0], [-0.5, 0.5])],
        *[(name, [0.0, 1.0], (1.0, 1.0)) for name in ("geometric_mean", "harmonic_mean")],
        *[(name, [0.5, 1.0], (1.0, -1.0)) for name in ("geometric_mean", "harmonic_mean")],
        ("log_tam", [0.5, 1.0], (1.0, 1.0)),
        ("weighted_sum", [0.5, 1.0], (0.0, 0.0)),
        ("weighted_sum", [0.5, 1.0], (1.0,)),
        ("weighted_sum", [0.5, 1.0, 0.7], (1.0, 1.0)),
    ],
)
def test_what_cannot_be_combined_is_refused(aggregator: str, values: list[float], weights: tuple[float, ...]) -> None:
    rewards = {"pickscore": np.array([values]), "other": np.array([[0.5, 0.6]])}
    with pytest.raises(ValueError, match=r"pickscore|log_tam|weight"):
        aggregate(rewards, dict(zip(rewards, weights, strict=False)), aggregator)


def weakest(rewards: dict[str, np.ndarray], weights: dict[str, float]) -> np.ndarray:
    """The user's own: the worst weighted reward of each sample."""
    return np.min([weights[name] * values for name, values in rewards.items()], axis=0)


def torn(rewards: dict[str, np.ndarray], weights: dict[str, float]) -> np.ndarray:
    return rewards["clip_t"][0]


def in_place(rewards: dict[str, np.ndarray], weights: dict[str, float]) -> np.ndarray:
    rewards["clip_t"] += 1
    return rewards["clip_t"]


def test_an_aggregator_of_the_user() -> None:
    combined = aggregate(REWARDS, WEIGHTS, f"{__name__}:weakest")
    assert np.array_equal(combined.values, weakest(REWARDS, WEIGHTS)) and combined.scale == "recipe"
    for name in ("torn", "weekest"):
        with pytest.raises(ValueError, match=name):
            aggregate(REWARDS, WEIGHTS, f"{__name__}:{name}")
    rewards = {name: values.copy() for name, values in REWARDS.items()}
    assert np.array_equal(_custom_aggregator(f"{__name__}:in_place").combine(rewards, WEIGHTS, {}), CLIP + 1)
    assert all(np.array_equal(rewards[name], REWARDS[name]) for name in rewards)
