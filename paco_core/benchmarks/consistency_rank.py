"""ConsistencyRank: which judge orders four pictures by consistency with a reference as the annotator did?

Judges are functions from instances to scores; all see the same held-out instances, so that their
differences are paired.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd

from paco_core.benchmarks.ranking_metrics import METRICS, TIE_RULE, RankMetrics, chance_metrics, rank_metrics
from paco_core.benchmarks.results import flat
from paco_core.benchmarks.statistics import Estimate, compare, estimate
from paco_core.grpo.metrics import LEVEL
from paco_core.io.answer import plain
from paco_core.io.files import DataError, read_table
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.rewards.base import validate_failed_share

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from paco_core.reward_model.yes_probability import PairScorer

COLUMNS = ("instance_id", "prompt_id", "theme", "reference", "candidates", "ranking", "scores")
ASK_BATCH = 256  # pairs a call, so that progress shows


@dataclass(frozen=True)
class HeldOutRanking:
    """One held-out ranking: candidates as panel references, ``ranking`` their positions best first.

    ``scores`` are the annotator's, one a candidate; equal ones are ties, NaN where the annotator gives none.
    """

    instance_id: str
    prompt_id: str
    theme: str
    reference: str
    candidates: tuple[str, ...]
    ranking: tuple[int, ...]
    scores: tuple[float, ...]


class Panels(Protocol):
    """Looks panels up by reference (``dataset.panels.PanelStore``)."""

    def panel(self, ref: str) -> Image: ...


class Embedder(Protocol):
    """Embeds pictures."""

    def embed(self, images: Sequence[Image]) -> np.ndarray:
        """Embeddings of unit length, (N, width) in float64."""


@dataclass
class Judgement:
    """A judge's scores, one tuple an instance, one number a candidate, NaN where it failed, with causes."""

    label: str
    scores: list[tuple[float, ...]]
    causes: Counter[str] = field(default_factory=Counter)
    asked: int = 0  # distinct questions
    is_chance: bool = False  # a random order, whose expected figures count


def read_instances(path: Path, limit: int | None = None, seed: int = 0) -> list[HeldOutRanking]:
    """Read held-out rankings; with ``limit``, a random choice of that many, the same for equal seeds.

    Raises:
        DataError: when the file is missing or damaged, lacks a column, is empty, or holds an invalid ranking.
    """
    table = read_table(path, require=COLUMNS)
    if table.empty:
        raise DataError(f"{path}: holds no ranking; raise pairs.benchmark_share and run `dvc repro pairs`")
    return choose(instances_of(table, path), limit, seed)


def instances_of(table: pd.DataFrame, path: Path) -> list[HeldOutRanking]:
    """The rows of a table with :data:`COLUMNS`, which was read from ``path``.

    Raises:
        DataError: when a ranking does not order its candidates.
    """
    return [_instance(path, *row) for row in table[list(COLUMNS)].itertuples(index=False)]


def choose(instances: Sequence[HeldOutRanking], limit: int | None, seed: int) -> list[HeldOutRanking]:
    """All instances by id, or a random choice of ``limit``, the same for equal seeds."""
    ordered = sorted(instances, key=lambda instance: instance.instance_id)
    if limit is not None and limit < len(ordered):
        ordered = sorted(random.Random(seed).sample(ordered, limit), key=lambda i: i.instance_id)
    return ordered


def _instance(
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


def judge_pairs(
    label: str,
    scorer: PairScorer,
    instances: Sequence[HeldOutRanking],
    panels: Panels,
    *,
    template: str,
    advance: Callable[[int], object] = lambda _count: None,
) -> Judgement:
    """P(Yes) of each (reference, candidate); a pair that several instances share is asked once."""

    def question(instance: HeldOutRanking, candidate: str) -> tuple[str, str, str]:
        return instance.reference, candidate, render(template, theme=instance.theme)

    questions = sorted({question(i, candidate) for i in instances for candidate in i.candidates})
    answers: dict[tuple[str, str, str], float] = {}
    causes: Counter[str] = Counter()
    for start in range(0, len(questions), ASK_BATCH):
        part = questions[start : start + ASK_BATCH]
        queries = [PairQuery(panels.panel(first), panels.panel(second), text) for first, second, text in part]
        for key, score in zip(part, scorer.score(queries), strict=True):
            answers[key] = score.value
            if score.cause is not None:
                causes[score.cause] += 1
        advance(len(part))
    scores = [tuple(answers[question(i, candidate)] for candidate in i.candidates) for i in instances]
    return Judgement(label, scores, causes, len(questions))


def count_questions(instances: Sequence[HeldOutRanking]) -> int:
    """How many distinct pairs :func:`judge_pairs` asks about."""
    return len({(i.reference, candidate, i.theme) for i in instances for candidate in i.candidates})


def judge_embeddings(label: str, embedder: Embedder, instances: Sequence[HeldOutRanking], panels: Panels) -> Judgement:
    """Cosine of the embeddings of reference and candidate: CLIP-I."""
    refs = sorted({ref for i in instances for ref in (i.reference, *i.candidates)})
    vectors = dict(zip(refs, embedder.embed([panels.panel(ref) for ref in refs]), strict=True))
    scores = [tuple(float(vectors[i.reference] @ vectors[c]) for c in i.candidates) for i in instances]
    return Judgement(label, scores, asked=len(refs))


def chance(label: str, instances: Sequence[HeldOutRanking]) -> Judgement:
    """A judge that orders at random, of which the expectation counts, not one draw; it has no scores."""
    return Judgement(label, [(math.nan,) * len(i.candidates) for i in instances], is_chance=True)


def best_above_worst(
    judgement: Judgement, instances: Sequence[HeldOutRanking], *, resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Share of rankings in which a judge scores the annotator's best candidate above the worst; a coin gets 0.5.

    A judge's tie counts as wrong, so that the answers are yes or no and have Wilson's interval, for as many independent
    ones as have the variance over prompts. Left out: rankings whose best and worst the annotator ties, or whose
    scores are missing (these are counted).
    """
    given = zip(instances, judgement.scores, strict=True)
    kept = [(i, scores) for i, scores in given if i.scores[i.ranking[0]] != i.scores[i.ranking[-1]]]
    answers = [
        math.nan if math.isnan(best + worst) else float(best > worst)
        for best, worst in ((scores[i.ranking[0]], scores[i.ranking[-1]]) for i, scores in kept)
    ]
    return estimate(answers, groups=[i.prompt_id for i, _ in kept], resamples=resamples, seed=seed)


def validate_judgement(judgement: Judgement, max_failed_share: float) -> Judgement:
    """The judgement, if it scored enough rankings.

    Raises:
        DataError: when more than ``max_failed_share`` of the rankings lack a score.
    """
    failed = sum(math.isnan(sum(scores)) for scores in judgement.scores)
    subject = f"rankings by {judgement.label}"
    validate_failed_share(failed, len(judgement.scores), max_failed_share, subject, judgement.causes)
    return judgement


@dataclass(frozen=True)
class ConsistencyRankResult:
    """Everything that the benchmark found."""

    instances: list[HeldOutRanking]
    judgements: dict[str, Judgement]
    per_instance: dict[str, list[RankMetrics]]
    estimates: dict[str, dict[str, Estimate]]
    comparisons: dict[str, dict[str, Estimate]]  # "reward - base" -> metric -> difference

    def unscorable(self, name: str) -> int:
        return sum(metrics.accuracy != metrics.accuracy for metrics in self.per_instance[name])

    def as_dict(self) -> dict[str, Any]:
        """The content of ``results.json``."""
        methods = {
            name: {
                "label": judgement.label,
                "unscorable": self.unscorable(name),
                "causes": dict(judgement.causes),
                "metrics": {metric: found.as_dict() for metric, found in self.estimates[name].items()},
            }
            for name, judgement in self.judgements.items()
        }
        comparisons = {
            name: {metric: found.as_dict() for metric, found in row.items()} for name, row in self.comparisons.items()
        }
        tree = {
            "instances": len(self.instances),
            "prompts": len({i.prompt_id for i in self.instances}),
            "candidates": sorted({len(i.candidates) for i in self.instances}),
            "level": LEVEL,
            "tie_rule": TIE_RULE,
            "methods": methods,
            "comparisons": comparisons,
        }
        cleaned: dict[str, Any] = plain(tree)
        return cleaned

    def metrics(self) -> dict[str, float]:
        """The flat figures for DVC and MLflow."""
        found: dict[str, float] = {"instances": len(self.instances)}
        for name in self.judgements:
            for metric, value in self.estimates[name].items():
                found[f"{name}.{metric}"] = value.mean
            found[f"{name}.unscorable_share"] = self.unscorable(name) / len(self.instances)
        for name, row in self.comparisons.items():
            for metric in ("accuracy", "t1_b1", "tau"):
                found |= flat(f"{name.replace(' - ', '_minus_')}.{metric}", row[metric])
        return found

    def table(self) -> pd.DataFrame:
        """One row an instance and judge: scores and every metric (``per_instance.parquet``)."""
        rows = [
            {
                "instance_id": instance.instance_id,
                "prompt_id": instance.prompt_id,
                "method": name,
                "scores": list(judgement.scores[position]),
                "ranking": list(instance.ranking),
                **self.per_instance[name][position].as_dict(),
            }
            for name, judgement in self.judgements.items()
            for position, instance in enumerate(self.instances)
        ]
        return pd.DataFrame(rows)


def evaluate(
    instances: Sequence[HeldOutRanking],
    judgements: Mapping[str, Judgement],
    pairs: Sequence[tuple[str, str]],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> ConsistencyRankResult:
    """Metrics of each judge and paired differences of the named pairs, intervals over prompts.

    Args:
        pairs: (first, second) keys of ``judgements``; the difference is first - second.
    """
    per_instance = {
        name: [
            chance_metrics(i.ranking, i.scores) if judgement.is_chance else rank_metrics(s, i.ranking, i.scores)
            for s, i in zip(judgement.scores, instances, strict=True)
        ]
        for name, judgement in judgements.items()
    }
    columns = {
        name: {metric: [getattr(row, metric) for row in rows] for metric in METRICS}
        for name, rows in per_instance.items()
    }
    estimates, comparisons = intervals(instances, columns, pairs, resamples=resamples, seed=seed)
    return ConsistencyRankResult(list(instances), dict(judgements), per_instance, estimates, comparisons)


def intervals(
    instances: Sequence[HeldOutRanking],
    columns: Mapping[str, Mapping[str, Sequence[float]]],
    pairs: Sequence[tuple[str, str]],
    *,
    resamples: int,
    seed: int,
) -> tuple[dict[str, dict[str, Estimate]], dict[str, dict[str, Estimate]]]:
    """Estimates of each judge, and comparisons of the named pairs (``"first - second"``), by metric.

    Args:
        columns: judge -> metric -> a value an instance.
    """
    draws: dict[str, Any] = {"groups": [i.prompt_id for i in instances], "resamples": resamples, "seed": seed}
    estimates = {
        name: {metric: estimate(values, **draws) for metric, values in column.items()}
        for name, column in columns.items()
    }
    comparisons = {
        f"{a} - {b}": {metric: compare(columns[a][metric], columns[b][metric], **draws) for metric in METRICS}
        for a, b in pairs
    }
    return estimates, comparisons
