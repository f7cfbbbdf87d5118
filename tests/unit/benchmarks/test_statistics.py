"""Means, differences and their intervals against slow references, case by case and draw by draw."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import astuple
from fractions import Fraction
from statistics import fmean, pvariance

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from paco_core.benchmarks.statistics import (
    BOOTSTRAP,
    NEWCOMBE,
    WILSON,
    Estimate,
    PairedShares,
    clipped_ratio,
    crossed_estimate,
    effective_cases,
    estimate,
    estimate_difference,
    wilson,
)
from paco_core.io.answer import to_jsonable
from paco_core.operations.promotion.paired import paired

NAN = float("nan")
Pairs = Sequence[tuple[float, float]]
Ends = tuple[float, float]

numbers = st.floats(-9, 9)
shares = st.sampled_from([*[0.0, 1.0] * 6, NAN])
values = st.sampled_from([shares, shares, st.one_of(numbers, numbers, st.just(NAN))])
cases = st.tuples(values, st.sampled_from([1, 20])).flatmap(
    lambda choice: st.lists(
        st.tuples(choice[0], choice[0], st.integers(0, 9), st.sampled_from("ab")), min_size=choice[1], max_size=40
    )
)
counts = st.tuples(*[st.integers(0, 20)] * 4).filter(any)


def slow_wilson(share: float, cases: float, z: float = 1.959963984540054) -> Ends:
    """The two true shares from which ``share`` is just z standard errors away."""

    def score(truth: float) -> float:
        return (share - truth) ** 2 - z * z * truth * (1 - truth) / cases

    step = 1e-9
    low = brentq(score, 0, share - step, xtol=1e-14) if share > step else 0.0
    return low, brentq(score, share + step, 1, xtol=1e-14) if share < 1 - step else 1.0


def slow_newcombe(pairs: Pairs, cases: float) -> Ends:
    """Square and add, with numpy's correlation of the two answers."""
    first, second = zip(*pairs, strict=True)
    varies = len(set(first)) == len(set(second)) == 2
    phi = float(np.corrcoef(first, second)[0, 1]) if varies else 0.0
    p, q = fmean(first), fmean(second)
    (p_low, p_high), (q_low, q_high) = slow_wilson(p, cases), slow_wilson(q, cases)

    def distance(left: float, right: float) -> float:
        return math.sqrt(max(0.0, left**2 - 2 * phi * left * right + right**2))

    return p - q - distance(p - p_low, q_high - q), p - q + distance(p_high - p, q - q_low)


def slow_effective_cases(values: Sequence[float], groups: Sequence[object]) -> float:
    """The variance of the values, over that of their mean when only cases of different groups are independent."""
    exact, count = [Fraction(value) for value in values], len(values)
    mean = sum(exact) / count
    covariances = [
        (a - mean) * (b - mean)
        for (a, g), (b, h) in itertools.product(zip(exact, groups, strict=True), repeat=2)
        if g == h
    ]
    variance, variance_of_mean = pvariance(exact), sum(covariances) / count**2
    least = Fraction(count**2, len(covariances))
    if not variance_of_mean:
        return float(count if variance else least)
    return float(min(count, max(least, variance / variance_of_mean)))


def slow_interval(pairs: Pairs, is_paired: bool, cases: float) -> Ends:
    return slow_newcombe(pairs, cases) if is_paired else slow_wilson(fmean(x for x, _ in pairs), cases)


def slow_estimate(
    rows: Sequence[tuple[float, float, str, str]], is_paired: bool, resamples: int, seed: int
) -> Estimate:
    """Of rows (first, second, group, class); the second is 0 where there is only one."""
    present = [row for row in rows if not math.isnan(row[0] - row[1])]
    missing = len(rows) - len(present)
    if not present:
        return Estimate(NAN, NAN, NAN, 0, 0, missing)
    groups, classes = (sorted({row[column] for row in present}) for column in (2, 3))

    def macro_mean(weights: Sequence[int]) -> float:
        means = []
        for name in classes:
            weighted_values = [(weights[groups.index(g)], x - y) for x, y, g, c in present if c == name]
            if total := sum(weight for weight, _ in weighted_values):
                means.append(sum(weight * value for weight, value in weighted_values) / total)
        return fmean(means)

    mean = macro_mean([1] * len(groups))
    if len(groups) < 6:
        return Estimate(mean, NAN, NAN, len(present), len(groups), missing)
    if {value for x, y, *_ in present for value in (x, y)} <= {0, 1} and len({row[2:] for row in present}) == len(
        groups
    ):
        distances = []
        for name in classes:
            pairs = [(x, y) for x, y, _, c in present if c == name]
            differences = [x - y for x, y in pairs]
            effective = slow_effective_cases(differences, [g for *_, g, c in present if c == name])
            low, high = slow_interval(pairs, is_paired, effective)
            distances.append((fmean(differences) - low, high - fmean(differences)))
        down, up = (math.hypot(*ends) / len(classes) for ends in zip(*distances, strict=True))
        method = NEWCOMBE if is_paired else WILSON
        return Estimate(mean, mean - down, mean + up, len(present), len(groups), missing, method)
    draws = np.random.default_rng(seed).multinomial(len(groups), [1 / len(groups)] * len(groups), size=resamples)
    low, high = np.quantile([macro_mean(draw) for draw in draws], [0.025, 0.975])
    return Estimate(mean, low, high, len(present), len(groups), missing)


def assert_same(estimate: Estimate, expected: Estimate) -> None:
    assert astuple(estimate) == pytest.approx(astuple(expected), abs=1e-7, nan_ok=True)


@given(st.floats(0, 1), st.floats(1, 500))
def test_wilsons_interval_solves_the_score_equation(share: float, cases: float) -> None:
    assert wilson(share, cases, 0.95) == pytest.approx(slow_wilson(share, cases), abs=1e-7)


@given(counts, st.floats(1, 80))
def test_newcombes_interval_by_definition(counts: tuple[int, ...], cases: float) -> None:
    pairs = np.repeat([(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)], counts, axis=0)
    shares = PairedShares.from_values(*pairs.T, cases)
    assert shares.newcombe(0.95) == pytest.approx(slow_newcombe([tuple(pair) for pair in pairs], cases), abs=1e-7)


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 5)), min_size=1, max_size=30))
def test_effective_cases_by_the_covariances_within_groups(rows: list[tuple[int, int]]) -> None:
    values, groups = zip(*rows, strict=True)
    effective = effective_cases(np.array(values, dtype=np.float64), np.array(groups))
    assert effective == pytest.approx(slow_effective_cases(values, groups))


@settings(max_examples=40)
@given(cases, st.booleans(), st.integers(0, 9))
@pytest.mark.parametrize("labels", ["cases", "groups", "classes", "groups of a class"])
def test_an_estimate_and_a_comparison_by_definition(
    labels: str, rows: list[tuple[float, float, int, str]], is_paired: bool, seed: int
) -> None:
    groups = {
        "cases": [f"{n:02d}" for n in range(len(rows))],
        "groups of a class": [f"{c}{g}" for *_, g, c in rows],
    }.get(labels, [str(g) for _, _, g, _ in rows])
    classes = [c for *_, c in rows] if "class" in labels else None
    first, second = [row[0] for row in rows], [row[1] if is_paired else 0.0 for row in rows]
    draws = {"classes": classes, "groups": None if labels == "cases" else groups, "resamples": 25, "seed": seed}
    result = estimate_difference(first, second, **draws) if is_paired else estimate(first, **draws)  # type: ignore[arg-type]
    table = list(zip(first, second, groups, classes or [""] * len(rows), strict=True))
    assert_same(result, slow_estimate(table, is_paired, 25, seed))


@given(st.data(), values, st.integers(1, 3), st.integers(4, 9), st.sampled_from([None, "row", "table"]))
def test_a_crossed_estimate_by_definition(
    data: st.DataObject, value: st.SearchStrategy[float], rows: int, columns: int, less: str | None
) -> None:
    """The mean of the present cells of rows and columns, and of those that were drawn with replacement."""
    table = np.array(data.draw(st.lists(value, min_size=rows * columns, max_size=rows * columns))).reshape(
        rows, columns
    )
    subtrahend = np.array(data.draw(st.lists(value, min_size=columns, max_size=columns))) if less else None
    if subtrahend is not None and less == "table":
        subtrahend = np.stack([np.roll(subtrahend, row) for row in range(rows)])
    result = crossed_estimate(table, subtrahend, resamples=40, seed=3)
    seconds = np.broadcast_to(0.0 if subtrahend is None else subtrahend, table.shape)
    cells = {at: (table[at], seconds[at]) for at in np.ndindex(rows, columns) if not np.isnan(table[at] - seconds[at])}
    missing = rows * columns - len(cells)
    if not cells:
        return assert_same(result, Estimate(NAN, NAN, NAN, 0, 0, missing))
    judged = sorted({column for _, column in cells})
    differences = {at: x - y for at, (x, y) in cells.items()}
    mean = fmean(differences.values())
    if len(judged) < 6:
        return assert_same(result, Estimate(mean, NAN, NAN, len(cells), len(judged), missing))
    rng, means = np.random.default_rng(3), []
    by_row, by_column = (rng.multinomial(n, [1 / n] * n, size=40) for n in (rows, len(judged)))
    for of_row, of_column in zip(by_row, by_column, strict=True):
        weights = {(row, column): of_row[row] * of_column[judged.index(column)] for row, column in cells}
        if total := sum(weights.values()):
            means.append(sum(weights[at] * differences[at] for at in cells) / total)
    method, (low, high) = BOOTSTRAP, np.quantile(means, [0.025, 0.975])
    if {x for pair in cells.values() for x in pair} <= {0, 1}:
        method = WILSON if subtrahend is None else NEWCOMBE
        effective = clipped_ratio(pvariance(differences.values()), pvariance(means), len(judged), len(cells))
        low, high = slow_interval(list(cells.values()), subtrahend is not None, effective)
    return assert_same(result, Estimate(mean, low, high, len(cells), len(judged), missing, method))


@pytest.mark.parametrize(
    ("variance", "of_mean", "cases"), [(2, 1, 3), (8, 2, 4), (8, 1, 7), (0, 1, 3), (1, 0, 7), (-1, -0.2, 3)]
)
def test_a_ratio_of_variances_stays_within_its_bounds(variance: float, of_mean: float, cases: float) -> None:
    assert clipped_ratio(variance, of_mean, 3, 7) == cases


def answers(both_correct: int, first: int, second: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    """Paired answers with so many of each kind."""
    counts = (both_correct, first, second, neither)
    return np.repeat([1.0, 1.0, 0.0, 0.0], counts), np.repeat([1.0, 0.0, 1.0, 0.0], counts)


def test_newcombes_published_example_and_one_case_more() -> None:
    """Newcombe 1998, table II: 36, 12, 2, 0 (Cochran's data), method without the correction for continuity.

    One edit made better and none worse of 48: McNemar's p is 1, and a bootstrap says 0.000 to 0.062.
    """
    published = estimate_difference(*answers(36, 12, 2, 0))
    assert (published.mean, published.low, published.high) == pytest.approx((0.2, 0.0569, 0.3404), abs=5e-3)
    first, second = answers(10, 1, 0, 37)
    single_gain = estimate_difference(first, second)
    assert (single_gain.mean, single_gain.low, single_gain.high) == pytest.approx((1 / 48, -0.0338, 0.0801), abs=1e-4)
    promoted = paired(first, second, [str(n) for n in range(48)])
    assert (promoted.difference, promoted.low, promoted.high) == (single_gain.mean, single_gain.low, single_gain.high)
    assert not promoted.is_better and not promoted.is_worse


def test_shapes_must_match() -> None:
    with pytest.raises(ValueError):
        estimate_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError):
        estimate([1.0, 2.0], groups=["a"])


def test_names_of_metrics_and_json() -> None:
    assert estimate_difference([1.0, 2.0], [0.0, 0.0]).metrics("gain").keys() == {"gain", "gain_low", "gain_high"}
    assert estimate_difference([1.0, NAN], [0.0, 0.0]).metrics("gain")["gain_missing"] == 1
    assert to_jsonable({"a": [NAN, 1.0], "b": (float("inf"),)}) == {"a": [None, 1.0], "b": [None]}
