"""How well annotators agree, and whose rankings are doubtful.

Over instances that several annotators ranked: Kendall's W (M. G. Kendall and B. Babington Smith, "The
Problem of m Rankings", 1939), and Kendall's tau between two annotators, whose (1 + tau) / 2 is the share of
candidate pairs that both order alike.
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

ENOUGH = 20  # shared instances below which nobody is judged, and no error is shown
ONE_SIDED = 1.645  # standard errors of a one-sided 95% bound


@dataclass(frozen=True)
class AnnotatorFigures:
    """One annotator's figures; ``doubts`` says in words why the rankings are doubtful, and is empty if not."""

    name: str
    rankings: int
    shared: int  # instances that others ranked as well
    tau: float  # mean Kendall tau with the others' rankings; 0 is chance
    tau_error: float  # standard error of that mean; NaN for fewer than ENOUGH shared instances
    pairwise: float  # share of candidate pairs ordered as the others did
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class Agreement:
    """Figures of all annotators together; NaN where no instance has two."""

    shared_instances: int
    kendall_w: float
    kendall_tau: float
    pairwise: float
    annotators: tuple[AnnotatorFigures, ...]

    @property
    def doubtful(self) -> tuple[AnnotatorFigures, ...]:
        return tuple(annotator for annotator in self.annotators if annotator.doubts)

    def names_of_doubtful(self) -> str:
        """One line that names every doubtful annotator with the cause."""
        return "; ".join(f"{one.name} ({', '.join(one.doubts)})" for one in self.doubtful) or "nobody"

    def metrics(self) -> dict[str, float]:
        """The figures that a stage reports."""
        return {
            "shared_instances": self.shared_instances,
            "kendall_w": self.kendall_w,
            "kendall_tau": self.kendall_tau,
            "pairwise_agreement": self.pairwise,
            "doubtful_annotators": len(self.doubtful),
        }

    def as_json(self) -> dict[str, Any]:
        """Everything, with null for what is not known."""

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
        for one in self.annotators:
            spread = "" if math.isnan(one.tau_error) else f" ± {ONE_SIDED * one.tau_error:.2f}"
            rows.append(
                (
                    one.name, str(one.rankings), str(one.shared), _show(one.pairwise), _show(one.tau) + spread,
                    "DOUBTFUL: " + "; ".join(one.doubts) if one.doubts else "",
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


def agreement(rankings: Iterable[Annotation]) -> Agreement:
    """The agreement of everybody, and of each with the others.

    Args:
        rankings: at most one by each annotator of each instance.
    """
    instances: dict[str, dict[str, list[int]]] = {}
    given: dict[str, int] = {}
    for vote in rankings:
        instances.setdefault(vote.instance_id, {})[vote.annotator] = vote.ranking
        given[vote.annotator] = given.get(vote.annotator, 0) + 1
    between: dict[tuple[str, str], list[float]] = {}  # taus of every two annotators
    with_others: dict[str, list[float]] = {name: [] for name in given}  # mean tau, an instance each
    concordances = []
    for votes in instances.values():
        if len(votes) < 2:
            continue
        concordances.append(kendall_w(list(votes.values())))
        own: dict[str, list[float]] = {name: [] for name in votes}
        for a, b in combinations(sorted(votes), 2):
            tau = kendall_tau(votes[a], votes[b])
            between.setdefault((a, b), []).append(tau)
            own[a].append(tau)
            own[b].append(tau)
        for name, taus in own.items():
            with_others[name].append(fmean(taus))
    everyone = [tau for taus in between.values() for tau in taus]
    annotators = []
    for name in sorted(given):
        rest = [tau for pair, taus in between.items() if name not in pair for tau in taus]
        annotators.append(_figures(name, given[name], with_others[name], rest))
    tau = mean_or_nan(everyone)
    return Agreement(len(concordances), mean_or_nan(concordances), tau, (1 + tau) / 2, tuple(annotators))


def _figures(name: str, rankings: int, taus: list[float], rest: list[float]) -> AnnotatorFigures:
    tau = mean_or_nan(taus)
    error = stdev(taus) / math.sqrt(len(taus)) if len(taus) >= ENOUGH else math.nan
    return AnnotatorFigures(
        name=name,
        rankings=rankings,
        shared=len(taus),
        tau=tau,
        tau_error=error,
        pairwise=(1 + tau) / 2,
        doubts=tuple(_doubts(taus, tau, error, rest)),
    )


def _doubts(taus: list[float], tau: float, error: float, rest: list[float]) -> list[str]:
    """Why an annotator is doubtful; with fewer than :data:`ENOUGH` shared instances agreement tells nothing."""
    found = []
    if len(taus) >= ENOUGH:
        among = mean_or_nan(rest) if len(rest) >= ENOUGH else math.nan
        if tau - ONE_SIDED * error <= 0:
            found.append(f"no better than chance over {len(taus)} shared instances")
        elif tau + ONE_SIDED * error < among / 2:
            found.append(f"agrees with the others less than half as much as they do ({tau:.2f} against {among:.2f})")
    return found


def mean_or_nan(values: Sequence[float]) -> float:
    """The mean; NaN without a value."""
    return fmean(values) if values else math.nan


def _show(value: float, digits: int = 2) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
