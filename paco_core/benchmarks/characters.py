"""Characters: does a reward model tell new pictures of a character from other panels?

ROC-AUC is the probability that a new picture of the character has a higher score than a panel of a negative kind. All
models score the same held-out cases, so their differences are paired. The intervals are for other characters: a
percentile bootstrap draws characters with replacement.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from paco_core.benchmarks.statistics import Estimate
from paco_core.benchmarks.tables import ResultTable, interval, signed
from paco_core.data.pairs.characters import NEGATIVES, POSITIVE, HeldOutCase
from paco_core.grpo.metrics import FEWEST_GROUPS, LEVEL
from paco_core.reward_model.shapes import chunks
from paco_core.rewards.characters import character_query, mean_over_images

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from paco_core.benchmarks.rankings import Embedder, Panels
    from paco_core.reward_model.yes_probability import PairScorer

BATCH = 256  # queries per call of a scorer, so that the progress bar moves
ALL = "all"  # cases with any number of images of the character


@dataclass
class CaseScores:
    """Scores by one model, NaN if it failed, and the causes."""

    label: str
    scores: list[float]
    causes: Counter[str] = field(default_factory=Counter)


def count_case_queries(cases: Sequence[HeldOutCase]) -> int:
    """How many queries :func:`score_cases` needs."""
    return sum(len(case.references) for case in cases)


def score_cases(
    label: str,
    scorer: PairScorer,
    cases: Sequence[HeldOutCase],
    panels: Panels,
    advance: Callable[[int], object] = lambda _count: None,
) -> CaseScores:
    """P(Yes) of each case, as the reward ``characters`` computes it for one panel and one character."""
    rows = [(number, reference) for number, case in enumerate(cases) for reference in case.references]
    values: list[list[float]] = [[] for _ in cases]
    result = CaseScores(label, [])
    for part in chunks(rows, BATCH):
        queries = [
            character_query(panels.panel(reference), panels.panel(cases[number].panel), cases[number].character)
            for number, reference in part
        ]
        for (number, _), score in zip(part, scorer.score(queries), strict=True):
            values[number].append(score.value)
            if score.cause is not None:
                result.causes[score.cause] += 1
        advance(len(part))
    result.scores = [mean_over_images(row) for row in values]
    return result


def score_case_embeddings(label: str, embedder: Embedder, cases: Sequence[HeldOutCase], panels: Panels) -> CaseScores:
    """Mean cosine of the embeddings of the panel and the images of the character, for example CLIP-I."""
    refs = sorted({ref for case in cases for ref in (case.panel, *case.references)})
    vectors = dict(zip(refs, embedder.embed([panels.panel(ref) for ref in refs]), strict=True))
    scores = [
        mean_over_images([float(vectors[reference] @ vectors[case.panel]) for reference in case.references])
        for case in cases
    ]
    return CaseScores(label, scores)


@dataclass(frozen=True)
class CharacterRow:
    """ROC-AUC of one negative kind: of each model, and the differences to the first model."""

    kind: str
    references: str  # number of images of the character, or :data:`ALL`
    positives: int
    negatives: int
    auc: dict[str, Estimate]
    differences: dict[str, Estimate]  # "first - other" -> difference


@dataclass(frozen=True)
class CharacterResult:
    """Results of all kinds and numbers of images."""

    labels: dict[str, str]
    rows: list[CharacterRow]
    causes: dict[str, Counter[str]]

    def metrics(self) -> dict[str, float]:
        """``characters.<kind>.<images>.<model>`` and the differences, with the ends of the intervals."""
        metrics: dict[str, float] = {}
        for row in self.rows:
            key = f"characters.{row.kind}.{row.references}"
            for name, value in [*row.auc.items(), *row.differences.items()]:
                metrics |= value.metrics(f"{key}.{name.replace(' - ', '_minus_')}")
        return metrics

    def table(self) -> ResultTable:
        """One row per kind and number of images."""
        pairs = list(self.rows[0].differences) if self.rows else []
        rows = [
            [
                row.kind,
                row.references,
                f"{row.positives} / {row.negatives}",
                *(interval(row.auc[name]) for name in self.labels),
                *(signed(row.differences[pair]) for pair in pairs),
            ]
            for row in self.rows
        ]
        notes = [
            "ROC-AUC of positive panels against one negative kind, on characters that are not in the training data; "
            f"{LEVEL:.0%} bootstrap intervals over characters.",
            "The score of a panel is the mean over the images of the character.",
        ]
        head = ["negative panels", "images", "positives / negatives", *self.labels.values(), *pairs]
        return ResultTable("Characters", head, rows, notes)


def evaluate_cases(
    cases: Sequence[HeldOutCase], scores: Mapping[str, CaseScores], *, resamples: int = 2000, seed: int = 0
) -> CharacterResult:
    """ROC-AUC of each model and the differences of the first model and the others, with intervals over characters.

    Args:
        scores: by model; the first one is compared with the others.
    """
    values = {name: np.array(method.scores, dtype=np.float64) for name, method in scores.items()}
    counts = np.array([len(case.references) for case in cases])
    kinds = np.array([case.kind for case in cases])
    _, owners = np.unique([case.prompt_id for case in cases], return_inverse=True)
    rows = []
    for kind in NEGATIVES:
        for references in [*map(str, sorted(set(counts.tolist()))), ALL]:
            is_counted = np.full(len(cases), True) if references == ALL else counts == int(references)
            positive, negative = (np.flatnonzero(is_counted & (kinds == name)) for name in (POSITIVE, kind))
            if not len(negative):
                continue

            def auc(matrix: Any, sides: tuple[Any, Any] = (positive, negative)) -> Estimate:
                return _estimate(matrix, owners[sides[0]], owners[sides[1]], resamples, seed)

            wins = {name: win_matrix(column[positive], column[negative]) for name, column in values.items()}
            first, *baselines = wins
            rows.append(
                CharacterRow(
                    kind,
                    references,
                    len(positive),
                    len(negative),
                    {name: auc(matrix) for name, matrix in wins.items()},
                    {f"{first} - {other}": auc(wins[first] - wins[other]) for other in baselines},
                )
            )
    causes = {name: method.causes for name, method in scores.items() if method.causes}
    return CharacterResult({name: method.label for name, method in scores.items()}, rows, causes)


def win_matrix(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> NDArray[np.float64]:
    """(P, N): 1 if the positive score is higher, 0.5 for a tie, NaN if a score is missing. Its mean is the ROC-AUC."""
    first, second = positives[:, None], negatives[None, :]
    wins = (first > second) + 0.5 * (first == second)
    return np.where(np.isnan(first) | np.isnan(second), math.nan, wins)


def _estimate(
    matrix: NDArray[np.float64],
    positive_owners: NDArray[np.intp],
    negative_owners: NDArray[np.intp],
    resamples: int,
    seed: int,
) -> Estimate:
    """The mean of a (P, N) matrix, with an interval over characters.

    Args:
        positive_owners, negative_owners: (P,) and (N,) the number of the character of each case.
    """
    present = ~np.isnan(matrix)
    missing = int((~present.any(axis=1)).sum() + (~present.any(axis=0)).sum())
    if not present.any():
        return Estimate(math.nan, math.nan, math.nan, 0, 0, missing)
    owners, places = np.unique(np.concatenate([positive_owners, negative_owners]), return_inverse=True)
    mean, count = float(np.nanmean(matrix)), len(places) - missing
    if len(owners) < FEWEST_GROUPS:
        return Estimate(mean, math.nan, math.nan, count, len(owners), missing)
    draws = np.random.default_rng(seed).multinomial(len(owners), np.full(len(owners), 1 / len(owners)), size=resamples)
    positive, negative = draws[:, places[: len(matrix)]], draws[:, places[len(matrix) :]]
    sums = ((positive @ np.where(present, matrix, 0.0)) * negative).sum(axis=1)
    weights = ((positive @ present.astype(np.float64)) * negative).sum(axis=1)
    means = sums[weights > 0] / weights[weights > 0]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Estimate(mean, float(low), float(high), count, len(owners), missing)
