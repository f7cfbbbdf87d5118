"""Means, differences and their intervals: known values, coverage, groups, classes, seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, sem

from paco_core.benchmarks.statistics import (
    BOOTSTRAP,
    NEWCOMBE,
    WILSON,
    compare,
    crossed_estimate,
    estimate,
    is_yes_no,
    wilson,
)
from paco_core.io.answer import plain
from paco_core.operations.promotion.paired import paired

numbers = st.lists(st.floats(-100, 100), min_size=6, max_size=30)


def test_mean_is_over_cases_not_over_groups() -> None:
    found = estimate([1.0, 1.0, 1.0, 5.0], groups=["a", "a", "a", "b"])
    assert (found.mean, found.count, found.groups) == (2.0, 4, 2)


def test_interval_agrees_with_the_normal_one_on_many_cases() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, size=2000)
    found = estimate(values, resamples=4000)
    half = 1.96 * sem(values)
    assert found.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_cases_that_repeat_within_a_group_add_no_certainty() -> None:
    values = list(np.random.default_rng(1).normal(size=40))
    alone = estimate(values, groups=[str(n) for n in range(40)], seed=3)
    tenfold = estimate(values * 10, groups=[str(n) for n in range(40)] * 10, seed=3)
    assert tenfold.low == pytest.approx(alone.low)
    assert tenfold.high == pytest.approx(alone.high)


def test_missing_values_are_counted_and_left_out() -> None:
    found = estimate([1.0, float("nan"), 3.0])
    assert (found.mean, found.count, found.missing) == (2.0, 2, 1)


def test_nothing_left_is_nan_not_zero() -> None:
    found = estimate([float("nan")] * 3)
    assert math.isnan(found.mean) and math.isnan(found.low) and found.missing == 3


@pytest.mark.parametrize(("groups", "known"), [(1, False), (2, False), (3, False), (5, False), (6, True)])
@pytest.mark.parametrize("values", [[0.2, 0.7, 0.9], [0.0, 1.0, 0.0]])
def test_fewer_than_six_groups_have_no_interval(values: list[float], groups: int, known: bool) -> None:
    labels = [str(n) for n in range(groups)] * 3
    cases = np.repeat(values, groups)
    for found in (
        estimate(cases, groups=labels),
        compare(cases, np.zeros(3 * groups), groups=labels),
        crossed_estimate(cases.reshape(3, groups)),
    ):
        assert math.isfinite(found.low) is math.isfinite(found.high) is known
        assert found.mean == pytest.approx(np.mean(values)) and found.groups == groups


def test_a_macro_mean_and_its_interval_weigh_classes_equally() -> None:
    """By definition, for classes of unequal size whose groups reach over both, with a case that one side failed."""
    first = np.array([0.9, 0.1, 0.4, 0.7, 0.2, 0.6, 0.8, 0.3, 0.5, np.nan])
    second = np.array([0.5, 0.3, 0.1, 0.6, 0.1, 0.2, 0.9, 0.3, 0.1, 0.4])
    classes, groups = list("aaaaaaabbb"), [str(n % 6) for n in range(10)]
    found = compare(first, second, classes=classes, groups=groups, resamples=300, seed=5)
    cases = [(g, c, x) for g, c, x in zip(groups, classes, first - second, strict=True) if x == x]

    def macro(weights: np.ndarray) -> float:
        means = []
        for name in "ab":
            own = [(weights[int(g)], x) for g, c, x in cases if c == name]
            if total := sum(w for w, _ in own):
                means.append(sum(w * x for w, x in own) / total)
        return float(np.mean(means))

    draws = np.random.default_rng(5).multinomial(6, np.full(6, 1 / 6), size=300)
    low, high = np.quantile([macro(draw) for draw in draws], [0.025, 0.975])
    assert found.mean == pytest.approx(macro(np.ones(6))) and found.mean != pytest.approx(np.nanmean(first - second))
    assert (found.low, found.high) == pytest.approx((low, high)) and (found.count, found.missing) == (9, 1)


def test_rows_and_columns_are_drawn_and_missing_cells_left_out() -> None:
    """By definition: the mean of the present cells of rows and columns that were drawn with replacement."""
    rng = np.random.default_rng(1)
    table, less = rng.normal(size=(3, 8)), rng.normal(size=8)
    table[0, 1] = table[2, 1] = table[1, 4] = np.nan
    found = crossed_estimate(table, less, resamples=200, seed=7)
    draws = np.random.default_rng(7)
    rows = draws.multinomial(3, np.full(3, 1 / 3), size=200)
    columns = draws.multinomial(8, np.full(8, 1 / 8), size=200)
    cells = [(r, c, table[r, c] - less[c]) for r in range(3) for c in range(8) if table[r, c] == table[r, c]]
    means = []
    for of_rows, of_columns in zip(rows, columns, strict=True):
        weighed = [(of_rows[r] * of_columns[c], x) for r, c, x in cells]
        if total := sum(weight for weight, _ in weighed):
            means.append(sum(weight * x for weight, x in weighed) / total)
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])))
    assert found.mean == pytest.approx(np.mean([x for *_, x in cells])) and (found.count, found.missing) == (21, 3)


def test_a_table_of_answers_counts_at_least_as_many_cases_as_columns() -> None:
    """Two seeds that disagree on every prompt have the variance of one case; the interval is that of 40."""
    found = crossed_estimate(np.array([np.zeros(40), np.ones(40)]))
    assert (found.mean, found.groups, found.count) == (0.5, 40, 80)
    assert (found.low, found.high) == pytest.approx(wilson(0.5, 40, 0.95))


def test_a_column_without_values_is_no_group() -> None:
    table = np.arange(14.0).reshape(2, 7)
    table[:, 3] = np.nan
    found = crossed_estimate(table)
    assert (found.groups, found.missing, found.count) == (6, 2, 12) and math.isfinite(found.low)
    table[:, 5] = np.nan
    assert math.isnan(crossed_estimate(table).low)


@settings(deadline=None, max_examples=40)
@given(numbers)
def test_interval_lies_within_the_values(values: list[float]) -> None:
    assume(not is_yes_no(np.array(values)))
    found = estimate(values, resamples=200)
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= found.low <= found.high <= max(values) + slack


@settings(deadline=None, max_examples=40)
@given(numbers, st.floats(-5, 5))
def test_interval_moves_with_a_shift(values: list[float], shift: float) -> None:
    assume(not is_yes_no(np.array(values)) and not is_yes_no(np.array(values) + shift))
    here, there = estimate(values, resamples=200), estimate(np.array(values) + shift, resamples=200)
    assert there.low == pytest.approx(here.low + shift, abs=1e-6)


def test_pairing_removes_what_cases_share() -> None:
    rng = np.random.default_rng(2)
    ease = rng.normal(0, 10, size=60)
    found = compare(ease + 0.5 + rng.normal(0, 0.1, 60), ease)
    assert found.low > 0.4 and found.high < 0.6


def test_a_case_that_one_side_failed_counts_for_neither() -> None:
    found = compare([1.0, float("nan"), 1.0], [0.0, 0.0, float("nan")])
    assert (found.mean, found.count, found.missing) == (1.0, 1, 2)


def test_shapes_must_match() -> None:
    with pytest.raises(ValueError, match="one shape"):
        compare([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="label"):
        estimate([1.0, 2.0], groups=["a"])


def test_flat_names_and_json() -> None:
    comparison = compare([1.0, 2.0], [0.0, 0.0])
    assert comparison.metrics("gain").keys() == {"gain", "gain_low", "gain_high"}
    failed = compare([1.0, float("nan")], [0.0, 0.0])
    assert failed.metrics("gain") == {**failed.metrics("gain"), "gain": 1.0, "gain_missing": 1}
    assert plain({"a": [float("nan"), 1.0], "b": (float("inf"),)}) == {"a": [None, 1.0], "b": [None]}


def test_few_seeds_widen_the_interval() -> None:
    """Prompts agree within a seed and seeds do not: an interval over prompts alone would be far too sure."""
    rng = np.random.default_rng(0)
    table = rng.normal(0, 0.01, (3, 40)) + np.array([[0.0], [0.5], [1.0]])
    crossed, one = crossed_estimate(table), crossed_estimate(table[1])
    assert crossed.mean == pytest.approx(table.mean()) and crossed.high - crossed.low > 0.6
    assert one.high - one.low < 0.02 and one.groups == 40
    table[0, 0] = np.nan
    assert crossed_estimate(table).missing == 1 and crossed_estimate(table).count == 119
    assert np.isnan(crossed_estimate([[np.nan]]).mean) and np.isnan(crossed_estimate([[1.0]]).low)


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
    right = estimate(np.ones(48), classes=classes)
    assert right.mean == 1.0 and right.low < 0.95 and right.method == WILSON
    better = compare(np.ones(48), np.zeros(48), classes=classes)
    assert better.method == NEWCOMBE and better.low < 0.95 and better.mean == 1.0


def test_groups_that_span_classes_are_drawn() -> None:
    groups = [str(n // 2) for n in range(12)]
    found = estimate([1.0, 0.0, 1.0, 1.0] * 3, classes=["a", "b"] * 6, groups=groups)
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
