"""Means, gaps between sizes, and changes with their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paco_core.grpo.metrics import (
    deviation,
    gap_changes,
    gaps,
    mean_with_interval,
    paired_change,
    paired_changes,
    reward_ratio,
)

NAN = float("nan")


def test_the_mean_of_changes_has_students_interval_and_leaves_missing_ones_out() -> None:
    changes = np.array([0.1, 0.2, 0.3, 0.1, 0.2, 0.3, NAN])
    mean, low, high = mean_with_interval(changes)
    half = 2.570582 * math.sqrt(0.04 / 5) / math.sqrt(6)  # t of 5 degrees of freedom
    assert (mean, low, high) == pytest.approx((0.2, 0.2 - half, 0.2 + half))
    assert mean_with_interval(np.full(6, 0.2)) == pytest.approx((0.2, 0.2, 0.2))
    few, none = mean_with_interval(np.array([0.4] * 5)), mean_with_interval(np.array([NAN]))
    assert few[0] == pytest.approx(0.4) and all(map(math.isnan, (*few[1:], *none)))


def test_changes_are_of_what_was_measured_before_and_after() -> None:
    before = {"a": np.tile([[0.1, 0.3]], (6, 1)), "gone": np.zeros((6, 2))}
    changes = paired_changes(before, {"a": before["a"] + 0.2, "new": np.zeros((6, 2))})
    assert set(changes) == {"a"} and changes["a"].mean == pytest.approx(0.2)


def test_a_change_and_its_interval_are_over_the_prompts_with_all_scores() -> None:
    """Half of the images after training have no score: the rest did not change."""
    before = np.array([[0.1, 0.1], [0.2, 0.2], [0.3, 0.3], [0.4, 0.4], [0.5, 0.5], [0.6, 0.6], [0.0, 0.0], [0.0, 0.0]])
    after = before.copy()
    after[6:] = NAN
    change = paired_change(before, after)
    assert (change.mean, change.low, change.high, change.missing) == (0.0, 0.0, 0.0, 2)
    assert change.row() == {"": 0.0, "_low": 0.0, "_high": 0.0, "_missing": 2.0}
    assert paired_change(np.tile(before, 2), np.column_stack([before, after])).missing == 2, "one seed is enough"
    after[:] = NAN
    assert math.isnan(paired_change(before, after).mean) and paired_change(before, after).missing == 8


def test_the_interval_of_a_share_stays_within_its_range() -> None:
    before = np.array([[0.0], [1.0], [0.0], [1.0], [0.0], [1.0]])
    share, number = paired_change(before, 1 - before), paired_change(2 * before, 2 - 2 * before)
    assert (share.mean, share.low, share.high) == (0.0, -1.0, 1.0)
    assert number.low < -2 and number.high > 2


def test_scores_that_differ_by_rounding_have_no_deviation() -> None:
    assert math.isnan(deviation(np.array([0.3, 0.1 + 0.2, NAN])))
    assert deviation(np.array([0.3, 0.4])) == pytest.approx(0.0707, abs=1e-4)


def test_a_gap_and_its_change_are_over_common_prompts() -> None:
    scores = {"32/x": np.array([[0.1], [0.2], [0.9]]), "64/x": np.array([[0.3], [0.5], [NAN]])}
    metrics = {"32/x": 0.4, "64/x": 0.4, "32/grid_score": 1.0, "64/grid_score": 3.0, "64/failed_samples": 1.0}
    differences = gaps(metrics, scores, [32, 64])
    assert differences == pytest.approx({"x": 0.25, "grid_score": 2.0})  # means of the first two prompts: 0.15 and 0.4
    later = {"32/x": np.array([[0.1], [NAN], [0.9]]), "64/x": np.array([[0.6], [0.5], [0.9]])}
    assert gap_changes(scores, later, [32, 64]) == pytest.approx({"gap/x": 0.3})  # of the first prompt: 0.2, then 0.5
    assert gap_changes(scores, later, [32]) == {}


def test_the_ratio_of_two_rewards_is_over_the_images_that_have_both() -> None:
    first, second = np.array([0.2, 0.4, 1.0, NAN]), np.array([0.1, 0.2, NAN, 0.9])
    assert reward_ratio(first, second) == pytest.approx(2.0)
    assert math.isnan(reward_ratio(first, np.zeros(4))) and math.isnan(reward_ratio(first, np.full(4, NAN)))
