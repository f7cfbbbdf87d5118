"""Agreement between annotators, and detection of doubtful rankings.

The metrics use the instances that several annotators ranked: Kendall's W (M. G. Kendall and B. Babington Smith, "The
Problem of m Rankings", 1939) and Kendall's tau between two annotators. (1 + tau) / 2 is the share of candidate pairs
that both rank in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

from paco_core.data.annotation.votes import Annotation
from paco_core.io.text_table import text_table

ENOUGH = 20  # with fewer shared instances, an annotator has neither an error nor doubts
ONE_SIDED = 1.645  # standard errors of a one-sided 95% bound


@dataclass(frozen=True)
class AnnotatorFigures:
    """Metrics of one annotator. ``doubts`` contains the reasons why the rankings are doubtful; it is empty if not."""

    name: str
    rankings: int
    shared: int  # instances that others ranked as well
    tau: float  # mean Kendall tau with the others' rankings; 0 is chance
    tau_error: float  # standard error of that mean; NaN for fewer than ENOUGH shared instances
    pairwise: float  # share of candidate pairs ordered as the others did
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class Agreement:
    """Metrics of all annotators together; NaN if no instance has two annotators."""

    shared_instances: int
    kendall_w: float
    kendall_tau: float
    pairwise: float
    annotators: tuple[AnnotatorFigures, ...]

    @property
    def doubtful(self) -> tuple[AnnotatorFigures, ...]:
        return tuple(annotator for annotator in self.annotators if annotator.doubts)

    def names_of_doubtful(self) -> str:
        """One line with every doubtful annotator and the reasons."""
        return "; ".join(f"{annotator.name} ({', '.join(annotator.doubts)})" for annotator in self.doubtful) or "nobody"

    def metrics(self) -> dict[str, float]:
        """The metrics that a stage reports."""
        return {
            "shared_instances": self.shared_instances,
            "kendall_w": self.kendall_w,
            "kendall_tau": self.kendall_tau,
            "pairwise_agreement": self.pairwise,
            "doubtful_annotators": len(self.doubtful),
        }

    def as_json(self) -> dict[str, Any]:
        """All fields, with null for NaN."""

        def clean(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: clean(part) for key, part in value.items()}
            if isinstance(value, list | tuple):
                return [clean(part) for part in value]
            return None if isinstance(value, float) and math.isnan(value) else value

        tree: dict[str, Any] = clean(asdict(self))
        return tree

    def text(self) -> str:
        """A table for a terminal or a log."""
        head = (
            f"{self.shared_instances} instances ranked by two or more: Kendall's W {_show(self.kendall_w)}, "
            f"pairwise agreement {_show(self.pairwise)} (chance 0.50), Kendall's tau {_show(self.kendall_tau)}"
        )
        columns = ("annotator", "rankings", "shared", "pairwise", "tau", "")
        rows: list[tuple[str, ...]] = []
        for annotator in self.annotators:
            margin = "" if math.isnan(annotator.tau_error) else f" ± {ONE_SIDED * annotator.tau_error:.2f}"
            rows.append(
                (
                    annotator.name, str(annotator.rankings), str(annotator.shared), _show(annotator.pairwise),
                    _show(annotator.tau) + margin,
                    "DOUBTFUL: " + "; ".join(annotator.doubts) if annotator.doubts else "",
                )
            )  # fmt: skip
        return "\n".join([head, *text_table([columns, *rows], right=(1, 2, 3))])


def kendall_w(rankings: Sequence[Sequence[int]]) -> float:
    """Kendall's coefficient of concordance of m orders of the same n candidates, without ties.

    W = 12 S / (m^2 (n^3 - n)) with S the squared deviations of the rank sums; 1 is full agreement and the
    mean under chance is 1 / m.
    """
    raters, count = len(rankings), len(rankings[0])
    sums = [0] * count
    for ranking in rankings:
        for place, candidate in enumerate(ranking, start=1):
            sums[candidate] += place
    mean = raters * (count + 1) / 2
    return 12 * sum((total - mean) ** 2 for total in sums) / (raters**2 * (count**3 - count))


def kendall_tau(first: Sequence[int], second: Sequence[int]) -> float:
    """Kendall's tau of two orders of the same candidates, without ties."""
    place = {candidate: n for n, candidate in enumerate(second)}
    pairs = list(combinations(first, 2))
    agreeing = sum(place[a] < place[b] for a, b in pairs)
    return 2 * agreeing / len(pairs) - 1


def measure_agreement(rankings: Iterable[Annotation]) -> Agreement:
    """Measure the agreement of all annotators, and of each annotator with the others.

    Args:
        rankings: at most one per annotator and instance.
    """
    instances: dict[str, dict[str, list[int]]] = {}
    ranking_counts: dict[str, int] = {}
    for vote in rankings:
        instances.setdefault(vote.instance_id, {})[vote.annotator] = vote.ranking
        ranking_counts[vote.annotator] = ranking_counts.get(vote.annotator, 0) + 1
    between: dict[tuple[str, str], list[float]] = {}  # taus of every two annotators
    with_others: dict[str, list[float]] = {name: [] for name in ranking_counts}  # mean tau, an instance each
    concordances = []
    for votes in instances.values():
        if len(votes) < 2:
            continue
        concordances.append(kendall_w(list(votes.values())))
        instance_taus: dict[str, list[float]] = {name: [] for name in votes}
        for a, b in combinations(sorted(votes), 2):
            tau = kendall_tau(votes[a], votes[b])
            between.setdefault((a, b), []).append(tau)
            instance_taus[a].append(tau)
            instance_taus[b].append(tau)
        for name, taus in instance_taus.items():
            with_others[name].append(fmean(taus))
    everyone = [tau for taus in between.values() for tau in taus]
    annotators = []
    for name in sorted(ranking_counts):
        other_taus = [tau for pair, taus in between.items() if name not in pair for tau in taus]
        annotators.append(_figures(name, ranking_counts[name], with_others[name], other_taus))
    tau = mean_or_nan(everyone)
    return Agreement(len(concordances), mean_or_nan(concordances), tau, (1 + tau) / 2, tuple(annotators))


def _figures(name: str, rankings: int, taus: list[float], other_taus: list[float]) -> AnnotatorFigures:
    tau = mean_or_nan(taus)
    error = stdev(taus) / math.sqrt(len(taus)) if len(taus) >= ENOUGH else math.nan
    return AnnotatorFigures(
        name=name,
        rankings=rankings,
        shared=len(taus),
        tau=tau,
        tau_error=error,
        pairwise=(1 + tau) / 2,
        doubts=tuple(_doubts(taus, tau, error, other_taus)),
    )


def _doubts(taus: list[float], tau: float, error: float, other_taus: list[float]) -> list[str]:
    """The reasons why an annotator is doubtful; none with fewer than :data:`ENOUGH` shared instances."""
    doubts = []
    if len(taus) >= ENOUGH:
        mean_other_tau = mean_or_nan(other_taus) if len(other_taus) >= ENOUGH else math.nan
        if tau - ONE_SIDED * error <= 0:
            doubts.append(f"no better than chance over {len(taus)} shared instances")
        elif tau + ONE_SIDED * error < mean_other_tau / 2:
            doubts.append(
                f"agrees with the others less than half as much as they agree ({tau:.2f} against {mean_other_tau:.2f})"
            )
    return doubts


def mean_or_nan(values: Sequence[float]) -> float:
    """The mean; NaN without a value."""
    return fmean(values) if values else math.nan


def _show(value: float, digits: int = 2) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
