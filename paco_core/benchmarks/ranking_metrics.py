"""Ranking metrics: scores of candidates compared with a human ranking (ConsistencyRank, arXiv 2512.04784).

Ties. Candidates with equal scores share their average rank in ``footrule``, ``tau`` and ``rho``. The
measures by position (``accuracy``, ``top1``, ``bottom1``) take their expected value over the orders
that a model's tie leaves open: a candidate tied over k places fills each of them with probability 1/k,
so that equal scores for all earn exactly chance. ``tau`` and ``rho`` are 0 there, for no order is claimed.
Where the human tied candidates, each order that this leaves open is as right as the others. Chance is
then above 1/n: :func:`chance_metrics` gives by how much.
The two ``*_paper`` measures know no ties; tied candidates keep their given order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata, spearmanr

TIE_RULE = (
    "If a model gives candidates equal scores, they share their average rank, and an accuracy is its expected value "
    "over their possible orders. If the annotator gave candidates equal ranks, every order of them is correct. The two "
    "measures of index orderings keep candidates with equal scores in their given order."
)


@dataclass(frozen=True)
class RankMetrics:
    """Agreement of one predicted order with one human order; all NaN when a score is missing."""

    accuracy: float  # share of positions filled as the human filled them
    top1: float  # a candidate that the human puts first comes first
    bottom1: float  # a candidate that the human puts last comes last
    t1_b1: float  # mean of the two
    footrule: float  # sum of |rank differences|: 0 is perfect, 8 the worst of four
    tau: float  # Kendall's tau-b of the rank vectors
    rho: float  # Spearman's rho of the rank vectors
    tau_paper: float  # the same two on index orderings, as the published numbers were computed
    rho_paper: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


METRICS: tuple[str, ...] = tuple(field.name for field in fields(RankMetrics))


def ranks_of_order(order: Sequence[int], scores: Sequence[float] | None = None) -> NDArray[np.float64]:
    """Rank (1 = best) of each candidate, (n,), in an order that lists candidate positions best first.

    Args:
        scores: the annotator's, one a candidate; neighbours in the order with equal scores are tied and
            share their average rank. NaN ties with nothing.

    Raises:
        ValueError: when the order does not name each of 0..n-1 once, or the scores are not as many.
    """
    if sorted(order) != list(range(len(order))):
        raise ValueError(f"{list(order)} is not a ranking of {len(order)} candidates; each of 0..n-1 must occur once")
    if scores is not None and len(scores) != len(order):
        raise ValueError(f"{len(scores)} annotator's scores for {len(order)} ranked candidates; need as many")
    ties: list[list[int]] = []
    for candidate in order:
        if scores is not None and ties and scores[ties[-1][-1]] == scores[candidate]:
            ties[-1].append(candidate)
        else:
            ties.append([candidate])
    ranks = np.empty(len(order))
    ranked = 0
    for tie in ties:
        ranks[tie] = ranked + (len(tie) + 1) / 2
        ranked += len(tie)
    return ranks


def ranks_of_scores(scores: Sequence[float]) -> NDArray[np.float64]:
    """Rank (1 = highest score) of each candidate, (n,); equal scores share their average rank."""
    return np.asarray(rankdata(-np.asarray(scores, dtype=np.float64)), dtype=np.float64)


def _correlations(predicted: Sequence[float], human: Sequence[float]) -> tuple[float, float]:
    if len(set(predicted)) == 1 or len(set(human)) == 1:
        return 0.0, 0.0
    return float(kendalltau(predicted, human).statistic), float(spearmanr(predicted, human).statistic)


def rank_metrics(
    scores: Sequence[float], human_order: Sequence[int], human_scores: Sequence[float] | None = None
) -> RankMetrics:
    """Compare scores of n candidates with a human order.

    Args:
        scores: one number a candidate, higher = more consistent; NaN = could not be scored.
        human_order: candidate positions, best first.
        human_scores: the annotator's own, where known: equal ones are ties.

    Raises:
        ValueError: when the lengths differ, there are fewer than two candidates, or the order is none.
    """
    count = len(scores)
    if count != len(human_order) or count < 2:
        raise ValueError(f"{count} scores for {len(human_order)} ranked candidates; need as many, at least 2")
    human = ranks_of_order(human_order, human_scores)
    values = np.asarray(scores, dtype=np.float64)
    if np.isnan(values).any():
        return RankMetrics(*[float("nan")] * len(METRICS))
    predicted = ranks_of_scores(scores)
    predicted_places, right = _places(predicted), _places(human)
    fills = (predicted_places & right).sum(axis=1) / predicted_places.sum(axis=1)
    # The share of the first (last) place that candidates hold whom the human accepts there.
    top1, bottom1 = (
        float((predicted_places & right)[:, end].sum() / predicted_places[:, end].sum()) for end in (0, count - 1)
    )
    tau, rho = _correlations(list(predicted), list(human))
    order = [int(position) for position in np.argsort(-values, kind="stable")]
    tau_paper, rho_paper = _correlations(order, list(human_order))
    return RankMetrics(
        accuracy=float(fills.mean()),
        top1=top1,
        bottom1=bottom1,
        t1_b1=(top1 + bottom1) / 2,
        footrule=float(np.abs(predicted - human).sum()),
        tau=tau,
        rho=rho,
        tau_paper=tau_paper,
        rho_paper=rho_paper,
    )


def chance_metrics(human_order: Sequence[int], human_scores: Sequence[float] | None = None) -> RankMetrics:
    """What a random order of the candidates gets, exactly: the mean over all n! orders.

    The correlations are 0; a candidate stands in each place equally often.

    Raises:
        ValueError: as :func:`rank_metrics` does.
    """
    count = len(human_order)
    tied = rank_metrics([0.0] * count, human_order, human_scores)  # position measures of a tie are their mean
    human, places = ranks_of_order(human_order, human_scores), np.arange(1, count + 1)
    footrule = float(np.abs(human[:, None] - places).mean(axis=1).sum())
    return replace(tied, footrule=footrule, tau_paper=0.0, rho_paper=0.0)


def _places(ranks: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(candidates, places): whether a candidate with this average rank may stand in a place."""
    size = (ranks[:, None] == ranks[None, :]).sum(axis=1)
    places = np.arange(1, len(ranks) + 1)
    is_at_place: NDArray[np.bool_] = np.abs(ranks[:, None] - places) <= (size[:, None] - 1) / 2
    return is_at_place
