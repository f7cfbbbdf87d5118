"""Rank metrics against scipy, worked examples, and the laws that ties must keep."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau, spearmanr

from paco_core.benchmarks.ranking_metrics import METRICS, chance_metrics, rank_metrics, ranks_of_order, ranks_of_scores

orders = st.permutations(range(4))
scores = st.lists(st.floats(0, 1), min_size=4, max_size=4)


def test_perfect_order() -> None:
    found = rank_metrics([0.1, 0.9, 0.5, 0.3], [1, 2, 3, 0])
    assert found.as_dict() == dict.fromkeys(METRICS, 1.0) | {"footrule": 0.0}


def test_reversed_order_by_hand() -> None:
    found = rank_metrics([0.9, 0.8, 0.2, 0.1], [3, 2, 1, 0])
    assert (found.accuracy, found.top1, found.bottom1, found.footrule) == (0.0, 0.0, 0.0, 8.0)
    assert (found.tau, found.rho) == (pytest.approx(-1), pytest.approx(-1))


def test_one_swap_by_hand() -> None:
    # Human b a c d, predicted a b c d: c and d are in place, one of six pairs is swapped.
    found = rank_metrics([0.9, 0.8, 0.2, 0.1], [1, 0, 2, 3])
    assert (found.accuracy, found.top1, found.bottom1, found.t1_b1, found.footrule) == (
        0.5,
        0.0,
        1.0,
        0.5,
        2.0,
    )
    assert found.tau == pytest.approx((5 - 1) / 6)
    assert found.rho == pytest.approx(1 - 6 * 2 / (4 * 15))


def test_index_orderings_are_another_statistic() -> None:
    predicted_scores, human = [0.4, 0.9, 0.1, 0.6], [3, 0, 1, 2]
    found = rank_metrics(predicted_scores, human)
    predicted_order = [1, 3, 0, 2]
    assert found.tau_paper == pytest.approx(kendalltau(predicted_order, human).statistic)
    assert found.rho_paper == pytest.approx(spearmanr(predicted_order, human).statistic)
    assert found.tau == pytest.approx(kendalltau(ranks_of_scores(predicted_scores), ranks_of_order(human)).statistic)
    assert abs(found.tau - found.tau_paper) > 0.1


@given(scores, orders)
def test_equal_to_scipy_on_rank_vectors(values: list[float], human: list[int]) -> None:
    found = rank_metrics(values, human)
    if len(set(values)) > 1:
        assert found.tau == pytest.approx(kendalltau(-np.array(values), ranks_of_order(human)).statistic, abs=1e-9)
        assert found.rho == pytest.approx(spearmanr(-np.array(values), ranks_of_order(human)).statistic, abs=1e-9)


@pytest.mark.slow
@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4), orders)
def test_positions_under_ties_are_the_mean_over_the_open_orders(values: list[float], human: list[int]) -> None:
    found = rank_metrics(values, human)
    broken = []
    for jitter in itertools.permutations([1e-3, 2e-3, 3e-3, 4e-3]):
        broken.append(rank_metrics([v + j for v, j in zip(values, jitter, strict=True)], human))
    for name in ("accuracy", "top1", "bottom1", "t1_b1"):
        assert getattr(found, name) == pytest.approx(np.mean([getattr(b, name) for b in broken]))


def test_equal_scores_earn_chance() -> None:
    found = rank_metrics([0.5] * 4, [2, 0, 3, 1])
    assert (found.accuracy, found.t1_b1, found.tau, found.rho) == (0.25, 0.25, 0.0, 0.0)


def test_any_order_that_the_humans_tie_leaves_open_is_right() -> None:
    # The human: candidate 0 best, then 1, 2 and 3 alike. The judge swaps within the tie, then across it.
    within = rank_metrics([0.9, 0.1, 0.5, 0.3], [0, 1, 2, 3], [1.0, 0.5, 0.5, 0.5])
    assert (within.accuracy, within.top1, within.bottom1, within.footrule) == (1.0, 1.0, 1.0, 2.0)
    across = rank_metrics([0.5, 0.9, 0.3, 0.1], [0, 1, 2, 3], [1.0, 0.5, 0.5, 0.5])
    assert (across.accuracy, across.top1, across.bottom1) == (0.5, 0.0, 1.0)
    assert across.tau == pytest.approx(kendalltau([2, 1, 3, 4], [1, 3, 3, 3]).statistic)


@pytest.mark.slow
@given(scores, orders)
def test_scores_without_ties_say_no_more_than_the_order(values: list[float], human: list[int]) -> None:
    strict = [4.0 - human.index(n) for n in range(4)]
    assert rank_metrics(values, human, strict) == rank_metrics(values, human)
    assert rank_metrics(values, human, [math.nan] * 4) == rank_metrics(values, human)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4), scores)
def test_a_judge_that_scores_as_the_human_is_right_everywhere(human: list[float], values: list[float]) -> None:
    order = sorted(range(4), key=lambda n: -human[n])
    found = rank_metrics(human, order, human)
    assert (found.accuracy, found.top1, found.bottom1, found.footrule) == (1.0, 1.0, 1.0, 0.0)
    assert rank_metrics(values, order, human).accuracy >= rank_metrics(values, order).accuracy


@given(scores, orders, st.permutations(range(4)))
def test_names_of_candidates_do_not_matter(values: list[float], human: list[int], names: list[int]) -> None:
    renamed = [values[names.index(n)] for n in range(4)]
    here, there = rank_metrics(values, human), rank_metrics(renamed, [names[n] for n in human])
    for metric in ("accuracy", "top1", "bottom1", "footrule", "tau", "rho"):
        assert getattr(here, metric) == pytest.approx(getattr(there, metric))


def test_chance_is_the_mean_over_all_orders() -> None:
    for human, scores in (([0, 1, 2, 3], None), ([2, 0, 1], [0.5, 0.5, 0.9])):
        orders = itertools.permutations(range(len(human)))
        every = [rank_metrics(list(order), human, scores).as_dict() for order in orders]
        means = {name: np.mean([metrics[name] for metrics in every]) for name in METRICS}
        assert chance_metrics(human, scores).as_dict() == pytest.approx(means)


def test_ties_of_everything_claim_no_order_and_keep_the_given_one() -> None:
    tied = rank_metrics([0.9, 0.5, 0.1], [0, 1, 2], [0.5, 0.5, 0.5])
    assert (tied.accuracy, tied.tau, tied.rho) == (1.0, 0.0, 0.0)
    judge = rank_metrics([0.5, 0.5, 0.5], [0, 1, 2])
    assert (judge.tau_paper, judge.rho_paper) == pytest.approx((1.0, 1.0))


def test_a_missing_score_makes_every_metric_nan() -> None:
    assert all(math.isnan(v) for v in rank_metrics([0.1, float("nan"), 0.3, 0.4], [0, 1, 2, 3]).as_dict().values())


@pytest.mark.parametrize(("values", "human"), [([0.1, 0.2], [0, 0]), ([0.1, 0.2], [0, 1, 2]), ([0.1], [0])])
def test_what_is_no_ranking_is_an_error(values: list[float], human: list[int]) -> None:
    with pytest.raises(ValueError):
        rank_metrics(values, human)


@pytest.mark.parametrize(
    ("human", "top1", "bottom1"),
    [([1, 2, 0, 3], 0, 1), ([0, 3, 2, 1], 1, 0), ([0, 2, 1, 3], 1, 1), ([3, 1, 2, 0], 0, 0)],
)
def test_first_and_last_place_by_hand(human: list[int], top1: float, bottom1: float) -> None:
    """The candidates are scored in the order 0, 1, 2, 3; whoever stands second or third changes nothing."""
    found = rank_metrics([0.9, 0.7, 0.5, 0.3], human)
    assert (found.top1, found.bottom1, found.t1_b1) == (top1, bottom1, (top1 + bottom1) / 2)
