"""Intervals of shares of yes and no: known values, coverage, groups, classes, seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from paco_core.benchmarks.statistics import (
    BOOTSTRAP,
    NEWCOMBE,
    WILSON,
    compare,
    crossed_estimate,
    estimate,
    macro_compare,
    macro_estimate,
)
from paco_core.operations.promotion.paired import paired


def answers(both: int, first: int, second: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    """Paired answers with so many of each kind."""
    counts = (both, first, second, neither)
    return np.repeat([1.0, 1.0, 0.0, 0.0], counts), np.repeat([1.0, 0.0, 1.0, 0.0], counts)


@pytest.mark.parametrize(("yes", "cases"), [(0, 48), (1, 48), (24, 48), (48, 48), (3, 7)])
def test_a_share_has_wilsons_interval(yes: int, cases: int) -> None:
    found = estimate(np.repeat([1.0, 0.0], [yes, cases - yes]))
    known = binomtest(yes, cases).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=1e-12)
    assert found.method == WILSON


def test_one_case_more_is_no_gain() -> None:
    """One edit made better and none worse of 48: McNemar's p is 1, and a bootstrap says 0.000 to 0.062."""
    found = compare(*answers(10, 1, 0, 37))
    assert found.mean == pytest.approx(1 / 48)
    assert (found.low, found.high) == pytest.approx((-0.0338, 0.0801), abs=1e-4)
    assert found.method == NEWCOMBE


def test_newcombes_own_example() -> None:
    """Newcombe 1998, table II: 36, 12, 2, 0 (Cochran's data), method without the correction for continuity."""
    found = compare(*answers(36, 12, 2, 0))
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, 0.0569, 0.3404), abs=5e-3)


def test_a_fall_mirrors_a_gain() -> None:
    first, second = answers(10, 5, 1, 32)
    gain, fall = compare(first, second), compare(second, first)
    assert (fall.low, fall.high) == pytest.approx((-gain.high, -gain.low))


@pytest.mark.parametrize("shares", [(0.2, 0.03, 0.02), (0.4, 0.10, 0.05)])
@pytest.mark.parametrize("alike", [1, 2])
def test_intervals_hold_as_often_as_they_say(shares: tuple[float, float, float], alike: int) -> None:
    """Of 48 independent pairs, each of which stands in a group as often as ``alike``; the bootstrap holds in 75%."""
    rng, held = np.random.default_rng(0), 0
    groups = [str(n // alike) for n in range(48 * alike)]
    for _ in range(500):
        drawn = answers(*rng.multinomial(48, [*shares, 1 - sum(shares)]))
        first, second = (np.repeat(side, alike) for side in drawn)
        found = compare(first, second, groups=groups, resamples=1)
        held += found.low <= shares[1] - shares[2] <= found.high
    assert held / 500 >= 0.93


def test_cases_of_a_group_that_are_alike_add_no_certainty() -> None:
    first, second = answers(10, 4, 1, 33)
    alone = compare(first, second)
    twice = compare(np.repeat(first, 2), np.repeat(second, 2), groups=[str(n // 2) for n in range(96)])
    assert (twice.low, twice.high) == pytest.approx((alone.low, alone.high))
    apart = compare(np.repeat(first, 2), np.repeat(second, 2))
    assert apart.high - apart.low < 0.8 * (alone.high - alone.low)


def test_no_change_is_not_certainty() -> None:
    found = compare(*answers(10, 0, 0, 38))
    assert found.low < 0 < found.high


def test_classes_without_a_miss_still_have_an_interval() -> None:
    classes = [str(n // 4) for n in range(48)]
    right = macro_estimate(np.ones(48), classes)
    assert right.mean == 1.0 and right.low < 0.95 and right.method == WILSON
    better = macro_compare(np.ones(48), np.zeros(48), classes)
    assert better.method == NEWCOMBE and better.low < 0.95 and better.mean == 1.0


def test_groups_that_span_classes_are_drawn() -> None:
    groups = [str(n // 2) for n in range(12)]
    found = macro_estimate([1.0, 0.0, 1.0, 1.0] * 3, ["a", "b"] * 6, groups=groups)
    assert found.method == BOOTSTRAP and found.low < found.high


def test_seeds_and_prompts_of_answers() -> None:
    base = np.repeat([1.0, 0.0], [10, 38])
    once = base.copy()
    once[10] = 1.0
    found = crossed_estimate(np.stack([base, base, once]), base)
    assert found.mean == pytest.approx(1 / 144) and found.low < 0 < found.high and found.method == NEWCOMBE
    never = crossed_estimate(np.zeros((3, 48)))
    assert never.low == 0.0 and never.high > 0.01 and never.method == WILSON
    parts = crossed_estimate(np.stack([base, once]) / 2, base)
    assert parts.method == BOOTSTRAP


def test_promotion_has_the_same_interval() -> None:
    first, second = answers(10, 1, 0, 37)
    found, known = paired(first, second, [str(n) for n in range(48)]), compare(first, second)
    assert (found.difference, found.low, found.high) == (known.mean, known.low, known.high) and found.low < 0
    assert not found.is_better and not found.is_worse
