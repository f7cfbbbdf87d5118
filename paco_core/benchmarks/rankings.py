"""ConsistencyRank: does a reward model rank images by their consistency with a reference as the annotator does?

All evaluators score the same held-out rankings, so their differences are paired (PaCo-RL, arXiv 2512.04784).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

from paco_core.benchmarks.published import sources
from paco_core.benchmarks.ranking_metrics import METRICS, TIE_RULE, RankMetrics, chance_metrics, rank_metrics
from paco_core.benchmarks.statistics import Estimate, estimate, estimate_difference, flat_differences
from paco_core.benchmarks.tables import ResultTable, difference_tables, interval, number, with_published
from paco_core.grpo.metrics import LEVEL
from paco_core.io.answer import to_jsonable
from paco_core.io.files import DataError, read_table
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.shapes import chunks
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.rewards.base import validate_failed_share

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.benchmarks.published import PublishedRow
    from paco_core.reward_model.yes_probability import PairScorer

#: Columns of a file of held-out rankings.
COLUMNS = ("instance_id", "prompt_id", "theme", "reference", "candidates", "ranking", "scores")
BATCH = 256  # queries per call of a scorer, so that the progress bar moves
METRIC_HEADS = {
    "accuracy": "accuracy", "t1_b1": "T1-B1", "tau": "tau", "rho": "rho", "tau_paper": "tau (index order)",
    "rho_paper": "rho (index order)", "footrule": "footrule",
}  # fmt: skip


@dataclass(frozen=True)
class HeldOutRanking:
    """One held-out ranking: candidates as panel references, ``ranking`` their positions best first.

    ``scores`` are the annotator's, one per candidate; equal ones are ties, NaN where the annotator gives none.
    """

    instance_id: str
    prompt_id: str
    theme: str
    reference: str
    candidates: tuple[str, ...]
    ranking: tuple[int, ...]
    scores: tuple[float, ...]


class RankedCase(Protocol):
    """A ranking of candidates."""

    @property
    def candidates(self) -> Sequence[str]: ...


class Panels(Protocol):
    """Looks panels up by reference, as ``PanelStore`` does."""

    def panel(self, ref: str) -> Image: ...


class Embedder(Protocol):
    """Embeds images."""

    def embed(self, images: Sequence[Image]) -> np.ndarray:
        """Embeddings of unit length, (N, width) in float64."""


@dataclass
class CandidateScores:
    """Scores by one evaluator: a tuple per case, a number per candidate, NaN where it failed, with the causes.

    ``is_chance``: a random order, whose expected metrics count; it has no scores.
    """

    label: str
    scores: list[tuple[float, ...]]
    causes: Counter[str] = field(default_factory=Counter)
    is_chance: bool = False

    def num_failed(self) -> int:
        """Cases without a score for each candidate."""
        return 0 if self.is_chance else sum(math.isnan(sum(scores)) for scores in self.scores)

    def summary(self) -> dict[str, Any]:
        return {"label": self.label, "unscorable": self.num_failed(), "causes": dict(self.causes)}


def read_rankings(path: Path, limit: int | None = None, seed: int = 0) -> list[HeldOutRanking]:
    """Read held-out rankings; with ``limit``, a random choice of that many, the same for equal seeds.

    Raises:
        DataError: when the file is missing or damaged, lacks a column, is empty, or contains an invalid ranking.
    """
    table = read_table(path, require=COLUMNS)
    if table.empty:
        raise DataError(f"{path}: holds no ranking; raise pairs.benchmark_share and run `dvc repro pairs`")
    return sample_rankings(parse_rankings(table, path), limit, seed)


def parse_rankings(table: pd.DataFrame, path: Path) -> list[HeldOutRanking]:
    """The rows of a table with :data:`COLUMNS`, which was read from ``path``.

    Raises:
        DataError: when a ranking does not order its candidates.
    """
    return [_parse_ranking(path, *row) for row in table[list(COLUMNS)].itertuples(index=False)]


def sample_rankings(rankings: Sequence[HeldOutRanking], limit: int | None, seed: int) -> list[HeldOutRanking]:
    """All rankings by id, or a random choice of ``limit``, the same for equal seeds."""
    ordered = sorted(rankings, key=lambda ranking: ranking.instance_id)
    if limit is not None and limit < len(ordered):
        ordered = sorted(random.Random(seed).sample(ordered, limit), key=lambda ranking: ranking.instance_id)
    return ordered


def _parse_ranking(
    path: Path, instance_id: object, prompt_id: object, theme: object, reference: object, *lists: Any
) -> HeldOutRanking:
    try:
        candidates, ranking = tuple(map(str, lists[0])), tuple(map(int, lists[1]))
        scores = tuple(math.nan if score is None else float(score) for score in lists[2])  # Parquet has null for NaN
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{path}: instance {instance_id}: candidates, ranking or scores are not lists as expected ({error})"
        ) from None
    if sorted(ranking) != list(range(len(candidates))):
        raise DataError(
            f"{path}: instance {instance_id}: ranking {list(ranking)} does not order its "
            f"{len(candidates)} candidates; run `dvc repro pairs`"
        )
    return HeldOutRanking(str(instance_id), str(prompt_id), str(theme), str(reference), candidates, ranking, scores)


def score_rankings(
    label: str,
    scorer: PairScorer,
    rankings: Sequence[HeldOutRanking],
    panels: Panels,
    *,
    template: str,
    advance: Callable[[int], object] = lambda _count: None,
) -> CandidateScores:
    """P(Yes) of each (reference, candidate); a pair that several rankings share is scored once."""

    def key(ranking: HeldOutRanking, candidate: str) -> tuple[str, str, str]:
        return ranking.reference, candidate, render_instruction(template, theme=ranking.theme)

    result, scores_by_query = CandidateScores(label, []), dict[tuple[str, str, str], float]()
    for part in chunks(sorted({key(ranking, ref) for ranking in rankings for ref in ranking.candidates}), BATCH):
        queries = {pair: PairQuery(panels.panel(pair[0]), panels.panel(pair[1]), pair[2]) for pair in part}
        scores_by_query |= score_once(scorer, queries, result.causes)
        advance(len(part))
    result.scores = [tuple(scores_by_query[key(ranking, ref)] for ref in ranking.candidates) for ranking in rankings]
    return result


def count_distinct_pairs(rankings: Iterable[HeldOutRanking]) -> int:
    """How many distinct pairs :func:`score_rankings` scores."""
    return len({(ranking.reference, ref, ranking.theme) for ranking in rankings for ref in ranking.candidates})


def score_once(
    scorer: PairScorer, queries: Mapping[tuple[str, str, str], PairQuery], causes: Counter[str]
) -> dict[tuple[str, str, str], float]:
    """Scores by key; the causes of failures are counted."""
    scores = scorer.score(list(queries.values()))
    causes.update(score.cause for score in scores if score.cause is not None)
    return {key: score.value for key, score in zip(queries, scores, strict=True)}


def score_embeddings(
    label: str, embedder: Embedder, rankings: Sequence[HeldOutRanking], panels: Panels
) -> CandidateScores:
    """Cosine of the embeddings of reference and candidate, for example CLIP-I."""
    refs = sorted({ref for ranking in rankings for ref in (ranking.reference, *ranking.candidates)})
    vectors = dict(zip(refs, embedder.embed([panels.panel(ref) for ref in refs]), strict=True))
    scores = [tuple(float(vectors[r.reference] @ vectors[ref]) for ref in r.candidates) for r in rankings]
    return CandidateScores(label, scores)


def random_order(label: str, cases: Sequence[RankedCase]) -> CandidateScores:
    """An evaluator that orders at random, of which the expectation counts."""
    return CandidateScores(label, [(math.nan,) * len(case.candidates) for case in cases], is_chance=True)


def best_above_worst(
    scores: CandidateScores, rankings: Sequence[HeldOutRanking], *, resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Share of rankings in which the annotator's best candidate scores higher than the worst; a coin gets 0.5.

    A tie of the scores counts as wrong, so that the values are 0 or 1 and have Wilson's interval, for as many
    independent ones as have the variance over prompts. Left out: rankings whose best and worst the annotator ties, or
    whose scores are missing (these are counted).
    """
    pairs = [
        (ranking.prompt_id, row[ranking.ranking[0]], row[ranking.ranking[-1]])
        for ranking, row in zip(rankings, scores.scores, strict=True)
        if ranking.scores[ranking.ranking[0]] != ranking.scores[ranking.ranking[-1]]
    ]
    values = [math.nan if math.isnan(best + worst) else float(best > worst) for _, best, worst in pairs]
    return estimate(values, groups=[prompt for prompt, *_ in pairs], resamples=resamples, seed=seed)


def validate_scores(scores: CandidateScores, max_failed_share: float) -> CandidateScores:
    """The scores, if enough rankings have one.

    Raises:
        DataError: when more than ``max_failed_share`` of the rankings lack a score.
    """
    subject = f"rankings by {scores.label}"
    validate_failed_share(scores.num_failed(), len(scores.scores), max_failed_share, subject, scores.causes)
    return scores


@dataclass(frozen=True)
class RankingResult:
    """Results of ConsistencyRank; dictionaries are by evaluator, comparisons by ``"first - second"``."""

    rankings: list[HeldOutRanking]
    scores: dict[str, CandidateScores]
    per_ranking: dict[str, list[RankMetrics]]
    estimates: dict[str, dict[str, Estimate]]  # by metric
    comparisons: dict[str, dict[str, Estimate]]

    def num_prompts(self) -> int:
        return len({ranking.prompt_id for ranking in self.rankings})

    def as_dict(self) -> dict[str, Any]:
        """The content of ``results.json``."""
        tree = {
            "instances": len(self.rankings),
            "prompts": self.num_prompts(),
            "candidates": sorted({len(ranking.candidates) for ranking in self.rankings}),
            "level": LEVEL,
            "tie_rule": TIE_RULE,
            "methods": {
                name: {**scores.summary(), "metrics": self.estimates[name]} for name, scores in self.scores.items()
            },
            "comparisons": self.comparisons,
        }
        cleaned: dict[str, Any] = to_jsonable(tree)
        return cleaned

    def metrics(self) -> dict[str, float]:
        """The flat metrics for DVC and MLflow."""
        metrics: dict[str, float] = {"instances": len(self.rankings)}
        for name, scores in self.scores.items():
            metrics |= {f"{name}.{metric}": value.mean for metric, value in self.estimates[name].items()}
            metrics[f"{name}.unscorable_share"] = scores.num_failed() / len(self.rankings)
        return metrics | flat_differences(self.comparisons, ("accuracy", "t1_b1", "tau"))

    def table(self) -> pd.DataFrame:
        """One row per ranking and evaluator: scores and every metric (``per_instance.parquet``)."""
        rows = [
            {
                "instance_id": ranking.instance_id,
                "prompt_id": ranking.prompt_id,
                "method": name,
                "scores": list(scores.scores[position]),
                "ranking": list(ranking.ranking),
                **self.per_ranking[name][position].as_dict(),
            }
            for name, scores in self.scores.items()
            for position, ranking in enumerate(self.rankings)
        ]
        return pd.DataFrame(rows)

    def tables(self, published: Sequence[PublishedRow], template: str) -> list[ResultTable]:
        """Evaluators with intervals, the published rows, and paired differences.

        The published rows are in the same table only if their queries had the same words.
        """
        rows = [
            [
                scores.label,
                *(interval(self.estimates[name][metric]) for metric in METRIC_HEADS),
                str(scores.num_failed()),
            ]
            for name, scores in self.scores.items()
        ]
        notes = [
            f"{len(self.rankings)} rankings of {self.num_prompts()} prompts; means with 95% bootstrap intervals over "
            "prompts. A random order gets its mean over all orders, exactly; annotators' ties raise it.",
            TIE_RULE,
            f"Asked by the template “{template}”.",
        ]
        head = ["model", *METRIC_HEADS.values(), "not scored"]
        same_queries = template == "marked"
        note = (
            f"Rows marked “published” ({sources(published)}) were measured by others on the public benchmark, not on "
            "these rankings."
        )
        if not same_queries:
            note += " Their models got another query than above (template “marked”)."
        published_rows = [
            [f"{row.model} (published)", *(number(row.figures.get(metric)) for metric in METRIC_HEADS), ""]
            for row in published
        ]
        tables = with_published(
            ResultTable("ConsistencyRank", head, rows, notes),
            ResultTable("ConsistencyRank, published", head, published_rows, [note]),
            same_queries=same_queries,
        )
        columns = {metric: METRIC_HEADS[metric] for metric in ("accuracy", "t1_b1", "tau", "rho")}
        note = "Paired by ranking, with 95% intervals over prompts."
        return tables + difference_tables(self.comparisons, columns, [note])


def evaluate_rankings(
    rankings: Sequence[HeldOutRanking],
    scores: Mapping[str, CandidateScores],
    pairs: Sequence[tuple[str, str]],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> RankingResult:
    """Metrics of each evaluator and paired differences of the named pairs, with intervals over prompts.

    Args:
        pairs: (first, second) keys of ``scores``; the difference is first - second.
    """
    per_ranking = {
        name: [
            chance_metrics(r.ranking, r.scores) if method_scores.is_chance else rank_metrics(row, r.ranking, r.scores)
            for row, r in zip(method_scores.scores, rankings, strict=True)
        ]
        for name, method_scores in scores.items()
    }
    columns = {
        name: {metric: [getattr(row, metric) for row in rows] for metric in METRICS}
        for name, rows in per_ranking.items()
    }
    draws: dict[str, Any] = {"groups": [r.prompt_id for r in rankings], "resamples": resamples, "seed": seed}
    estimates = {
        name: {metric: estimate(values, **draws) for metric, values in column.items()}
        for name, column in columns.items()
    }
    comparisons = {
        f"{a} - {b}": {
            metric: estimate_difference(columns[a][metric], columns[b][metric], **draws) for metric in METRICS
        }
        for a, b in pairs
    }
    return RankingResult(list(rankings), dict(scores), per_ranking, estimates, comparisons)
