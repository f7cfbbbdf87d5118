"""Rank metrics against scipy, worked examples, and the mean over the orders that ties leave open."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau, rankdata, spearmanr

from paco_core.benchmarks.ranking_metrics import METRICS, chance_metrics, rank_metrics

scores = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=4, max_size=4)


def open_orders(scores: list[float]) -> list[tuple[int, ...]]:
    """The orders of the candidates, best first, that scores leave open."""
    orders = itertools.permutations(range(len(scores)))
    return [order for order in orders if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))]


@settings(max_examples=60)
@given(scores, scores, st.booleans())
def test_position_measures_are_means_over_the_orders_that_ties_leave_open(
    judge: list[float], human: list[float], has_ties: bool
) -> None:
    """Each order that the human's tie leaves open is right; rank measures are scipy's."""
    order = max(open_orders(human))
    metrics = rank_metrics(judge, order, human if has_ties else [math.nan] * 4)
    assert has_ties or metrics == rank_metrics(judge, order)
    accepted = open_orders(human) if has_ties else [order]
    right = [
        [candidate in at for candidate, at in zip(o, zip(*accepted, strict=True), strict=True)]
        for o in open_orders(judge)
    ]
    assert metrics.accuracy == pytest.approx(np.mean(right))
    assert (metrics.top1, metrics.bottom1) == pytest.approx((np.mean(right, axis=0)[0], np.mean(right, axis=0)[3]))
    assert metrics.t1_b1 == (metrics.top1 + metrics.bottom1) / 2
    ranks = [rankdata(np.negative(judge)), rankdata(np.negative(human) if has_ties else np.argsort(order))]
    assert metrics.footrule == np.abs(ranks[0] - ranks[1]).sum()
    varies = all(len(set(side)) > 1 for side in ranks)
    correlations = [kendalltau(*ranks).statistic, spearmanr(*ranks).statistic] if varies else [0, 0]
    assert [metrics.tau, metrics.rho] == pytest.approx(correlations, abs=1e-9)


def test_one_swap_by_hand() -> None:
    """Human b a c d, predicted a b c d: c and d are in place, one of six pairs is swapped."""
    metrics = rank_metrics([0.9, 0.8, 0.2, 0.1], [1, 0, 2, 3])
    assert (metrics.accuracy, metrics.top1, metrics.bottom1, metrics.footrule) == (0.5, 0.0, 1.0, 2.0)
    assert (metrics.tau, metrics.rho) == pytest.approx(((5 - 1) / 6, 1 - 6 * 2 / (4 * 15)))


def test_index_orderings_are_another_statistic() -> None:
    """Those of the published numbers; tied candidates keep the order they are listed in."""
    metrics = rank_metrics([0.4, 0.9, 0.1, 0.6], [3, 0, 1, 2])
    orders = [1, 3, 0, 2], [3, 0, 1, 2]
    assert metrics.tau_paper == pytest.approx(kendalltau(*orders).statistic)
    assert metrics.rho_paper == pytest.approx(spearmanr(*orders).statistic)
    assert abs(metrics.tau - metrics.tau_paper) > 0.1
    tied = rank_metrics([0.5, 0.5, 0.5], [0, 1, 2])
    assert (tied.tau_paper, tied.rho_paper) == pytest.approx((1.0, 1.0))


def test_chance_is_the_mean_over_all_orders() -> None:
    for human, scores in (([0, 1, 2, 3], None), ([2, 0, 1], [0.5, 0.5, 0.9])):
        orders = itertools.permutations(range(len(human)))
        every = [rank_metrics(list(order), human, scores).as_dict() for order in orders]
        means = {name: np.mean([metrics[name] for metrics in every]) for name in METRICS}
        assert chance_metrics(human, scores).as_dict() == pytest.approx(means)


def test_a_missing_score_makes_every_metric_nan() -> None:
    assert all(math.isnan(v) for v in rank_metrics([0.1, float("nan"), 0.3, 0.4], [0, 1, 2, 3]).as_dict().values())


@pytest.mark.parametrize(
    ("values", "human", "scores"),
    [([0.1, 0.2], [0, 0], None), ([0.1, 0.2], [0, 1, 2], None), ([0.1], [0], None), ([0.1, 0.2], [0, 1], [0.5])],
)
def test_what_is_no_ranking_is_an_error(values: list[float], human: list[int], scores: list[float] | None) -> None:
    with pytest.raises(ValueError):
        rank_metrics(values, human, scores)
