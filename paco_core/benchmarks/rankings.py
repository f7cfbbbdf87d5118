"""ConsistencyRank and EditReward-Bench: does a reward model rank images as the annotator does?

ConsistencyRank ranks images by their consistency with a reference. EditReward-Bench (EditScore, arXiv 2509.23909) ranks
two edits of an image. Prompt following and consistency are P(Yes) of the two editing instructions; overall is the
square root of their product (PaCo-RL, arXiv 2512.04784). All evaluators score the same held-out cases, so that their
differences are paired.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
import pandas as pd

from paco_core.benchmarks.ranking_metrics import METRICS, TIE_RULE, RankMetrics, chance_metrics, rank_metrics
from paco_core.benchmarks.statistics import METHODS, Estimate, compare, estimate
from paco_core.benchmarks.tables import ResultTable, interval, number, signed, with_published
from paco_core.grpo.metrics import LEVEL
from paco_core.io.answer import plain
from paco_core.io.files import DataError, read_table
from paco_core.io.pictures import picture_digest
from paco_core.reward_model.instructions import render
from paco_core.reward_model.shapes import chunks
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.rewards.base import validate_failed_share

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.benchmarks.published import PublishedRow
    from paco_core.reward_model.yes_probability import PairScorer

Wording = Literal["rl", "published"]

#: Columns of a file of held-out rankings.
COLUMNS = ("instance_id", "prompt_id", "theme", "reference", "candidates", "ranking", "scores")
BATCH = 256  # queries per call of a scorer, so that the progress bar moves
METRIC_HEADS = {
    "accuracy": "accuracy", "t1_b1": "T1-B1", "tau": "tau", "rho": "rho", "tau_paper": "tau (index order)",
    "rho_paper": "rho (index order)", "footrule": "footrule",
}  # fmt: skip

FOLLOWING, CONSISTENCY, OVERALL = "prompt_following", "consistency", "overall"
DIMENSIONS = (FOLLOWING, CONSISTENCY, OVERALL)
DIMENSION_HEADS = ["prompt following", "consistency", "overall"]
#: Dimension -> the templates of its queries: as in RL and training, or as the published scores were measured.
EDIT_TEMPLATES: dict[Wording, dict[str, tuple[str, ...]]] = {
    "rl": {
        FOLLOWING: ("edit_following",),
        CONSISTENCY: ("edit_consistency",),
        OVERALL: ("edit_following", "edit_consistency"),
    },
    "published": {
        FOLLOWING: ("edit_bench_following",),
        CONSISTENCY: ("edit_bench_consistency",),
        OVERALL: ("edit_bench_following", "edit_bench_consistency"),
    },
}
EDIT_TIE_RULE = (
    "Strict accuracy counts a case as right where the better edit scores higher; ties are wrong. The ≥ variant "
    "counts ties as right. A case with a score missing is left out and counted."
)


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


@dataclass(frozen=True)
class EditCase:
    """A ranking of two edits of one image; ``images`` loads (source, better, worse)."""

    candidates: ClassVar[tuple[str, str]] = ("better", "worse")

    id: str
    task_type: str
    dimension: str
    instruction: str
    group: str  # cases of one source image and instruction belong together
    images: Callable[[], tuple[Image, Image, Image]]


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
        return ranking.reference, candidate, render(template, theme=ranking.theme)

    result, known = CandidateScores(label, []), dict[tuple[str, str, str], float]()
    for part in chunks(sorted({key(ranking, ref) for ranking in rankings for ref in ranking.candidates}), BATCH):
        queries = {pair: PairQuery(panels.panel(pair[0]), panels.panel(pair[1]), pair[2]) for pair in part}
        known |= _score_once(scorer, queries, result.causes)
        advance(len(part))
    result.scores = [tuple(known[key(ranking, ref)] for ref in ranking.candidates) for ranking in rankings]
    return result


def count_queries(rankings: Iterable[HeldOutRanking]) -> int:
    """How many distinct pairs :func:`score_rankings` scores."""
    return len({(ranking.reference, ref, ranking.theme) for ranking in rankings for ref in ranking.candidates})


def score_edits(
    label: str,
    scorer: PairScorer,
    cases: Sequence[EditCase],
    *,
    wording: Wording = "rl",
    advance: Callable[[int], object] = lambda _count: None,
) -> CandidateScores:
    """P(Yes) of the queries that each case's dimension needs, of two the square root of their product.

    Equal queries are scored once. Edits take the size of their source.
    """
    result, known = CandidateScores(label, []), dict[tuple[str, str, str], float]()
    for part in chunks(cases, BATCH // 4):
        queries: dict[tuple[str, str, str], PairQuery] = {}
        keys: list[list[list[tuple[str, str, str]]]] = []  # case, candidate, template
        for case in part:
            source, *edits = case.images()
            pairs = [(source, edit if edit.size == source.size else edit.resize(source.size)) for edit in edits]
            texts = [render(name, instruction=case.instruction) for name in EDIT_TEMPLATES[wording][case.dimension]]
            digests = [(picture_digest(first), picture_digest(second)) for first, second in pairs]
            keys.append([[(text, *digest) for text in texts] for digest in digests])
            queries |= {
                (text, *digest): PairQuery(*pair, text)
                for pair, digest in zip(pairs, digests, strict=True)
                for text in texts
                if (text, *digest) not in known
            }
        known |= _score_once(scorer, queries, result.causes)
        result.scores += [tuple(_overall([known[key] for key in row]) for row in rows) for rows in keys]
        advance(count_edit_queries(part))
    return result


def count_edit_queries(cases: Iterable[EditCase]) -> int:
    """How many queries :func:`score_edits` needs, before equal ones are merged."""
    return sum(2 * len(EDIT_TEMPLATES["rl"][case.dimension]) for case in cases)


def _score_once(
    scorer: PairScorer, queries: Mapping[tuple[str, str, str], PairQuery], causes: Counter[str]
) -> dict[tuple[str, str, str], float]:
    """Scores by key; the causes of failures are counted."""
    scores = scorer.score(list(queries.values()))
    causes.update(score.cause for score in scores if score.cause is not None)
    return {key: score.value for key, score in zip(queries, scores, strict=True)}


def _overall(scores: Sequence[float]) -> float:
    return scores[0] if len(scores) == 1 else math.sqrt(scores[0] * scores[1])


def score_embeddings(
    label: str, embedder: Embedder, rankings: Sequence[HeldOutRanking], panels: Panels
) -> CandidateScores:
    """Cosine of the embeddings of reference and candidate, for example CLIP-I."""
    refs = sorted({ref for ranking in rankings for ref in (ranking.reference, *ranking.candidates)})
    vectors = dict(zip(refs, embedder.embed([panels.panel(ref) for ref in refs]), strict=True))
    scores = [tuple(float(vectors[r.reference] @ vectors[ref]) for ref in r.candidates) for r in rankings]
    return CandidateScores(label, scores)


def score_edit_embeddings(label: str, embedder: Embedder, cases: Sequence[EditCase]) -> CandidateScores:
    """Cosine of source and edit. Embeddings read no instruction, so only cases of consistency get scores."""
    scores: list[tuple[float, ...]] = [(math.nan, math.nan)] * len(cases)
    rows = [row for row, case in enumerate(cases) if case.dimension == CONSISTENCY]
    vectors = embedder.embed([image for row in rows for image in cases[row].images()])
    for position, row in enumerate(rows):
        source, better, worse = vectors[3 * position : 3 * position + 3]
        scores[row] = (float(source @ better), float(source @ worse))
    return CandidateScores(label, scores)


def random_order(label: str, cases: Sequence[HeldOutRanking] | Sequence[EditCase]) -> CandidateScores:
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
                name: {**scores.summary(), "metrics": _as_dicts(self.estimates[name])}
                for name, scores in self.scores.items()
            },
            "comparisons": {name: _as_dicts(row) for name, row in self.comparisons.items()},
        }
        cleaned: dict[str, Any] = plain(tree)
        return cleaned

    def metrics(self) -> dict[str, float]:
        """The flat metrics for DVC and MLflow."""
        metrics: dict[str, float] = {"instances": len(self.rankings)}
        for name, scores in self.scores.items():
            metrics |= {f"{name}.{metric}": value.mean for metric, value in self.estimates[name].items()}
            metrics[f"{name}.unscorable_share"] = scores.num_failed() / len(self.rankings)
        return metrics | _flat_differences(self.comparisons, ("accuracy", "t1_b1", "tau"))

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
        head = ["judge", *METRIC_HEADS.values(), "not judged"]
        alike = template == "marked"
        note = (
            f"Rows marked “published” ({_sources(published)}) were measured by others on the public benchmark, not on "
            "these rankings."
        )
        if not alike:
            note += " Their judges were asked in other words than above (template “marked”)."
        others = [
            [f"{row.model} (published)", *(number(row.figures.get(metric)) for metric in METRIC_HEADS), ""]
            for row in published
        ]
        tables = with_published(
            ResultTable("ConsistencyRank", head, rows, notes),
            ResultTable("ConsistencyRank, published", head, others, [note]),
            alike=alike,
        )
        if self.comparisons:
            shown = ("accuracy", "t1_b1", "tau", "rho")
            differences = [[name, *(signed(row[metric]) for metric in shown)] for name, row in self.comparisons.items()]
            head = ["judges", *(METRIC_HEADS[metric] for metric in shown)]
            note = "Paired by ranking, with 95% intervals over prompts."
            tables.append(ResultTable("Paired differences", head, differences, [note], detail=True))
        return tables


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
            chance_metrics(r.ranking, r.scores) if one.is_chance else rank_metrics(row, r.ranking, r.scores)
            for row, r in zip(one.scores, rankings, strict=True)
        ]
        for name, one in scores.items()
    }
    columns = {
        name: {metric: [getattr(row, metric) for row in rows] for metric in METRICS}
        for name, rows in per_ranking.items()
    }
    estimates, comparisons = estimate_metrics(rankings, columns, pairs, resamples=resamples, seed=seed)
    return RankingResult(list(rankings), dict(scores), per_ranking, estimates, comparisons)


def estimate_metrics(
    rankings: Sequence[HeldOutRanking],
    columns: Mapping[str, Mapping[str, Sequence[float]]],
    pairs: Sequence[tuple[str, str]],
    *,
    resamples: int,
    seed: int,
) -> tuple[dict[str, dict[str, Estimate]], dict[str, dict[str, Estimate]]]:
    """Estimates of each evaluator, and comparisons of the named pairs (``"first - second"``), by metric.

    Args:
        columns: evaluator -> metric -> a value per ranking.
    """
    draws: dict[str, Any] = {"groups": [r.prompt_id for r in rankings], "resamples": resamples, "seed": seed}
    estimates = {
        name: {metric: estimate(values, **draws) for metric, values in column.items()}
        for name, column in columns.items()
    }
    comparisons = {
        f"{a} - {b}": {metric: compare(columns[a][metric], columns[b][metric], **draws) for metric in METRICS}
        for a, b in pairs
    }
    return estimates, comparisons


@dataclass(frozen=True)
class EditResult:
    """Results of EditReward-Bench; dictionaries are by evaluator, comparisons by ``"first - second"``.

    Accuracy is the mean within each task type, then over task types.
    """

    cases: list[EditCase]
    scores: dict[str, CandidateScores]
    right: dict[str, np.ndarray]  # (cases,): 1 where the better edit scores higher, NaN without scores
    estimates: dict[str, dict[str, Estimate]]  # by dimension: strict accuracy; by "<dimension>_geq": with ties right
    comparisons: dict[str, dict[str, Estimate]]  # by dimension

    def by_task(self, name: str) -> dict[str, dict[str, float]]:
        """Task type -> dimension -> strict accuracy."""
        tasks = sorted({case.task_type for case in self.cases})
        return {task: {d: self._accuracy(name, task, d) for d in DIMENSIONS} for task in tasks}

    def _accuracy(self, name: str, task: str, dimension: str) -> float:
        chosen = [c.task_type == task and c.dimension == dimension for c in self.cases]
        values = self.right[name][chosen]
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else math.nan

    def as_dict(self) -> dict[str, Any]:
        """The content of ``results.json``."""
        methods = {
            name: {
                **scores.summary(),
                "accuracy": {d: _as_dicts({"strict": row[d], "geq": row[f"{d}_geq"]}) for d in DIMENSIONS},
                "by_task": self.by_task(name),
            }
            for (name, scores), row in zip(self.scores.items(), self.estimates.values(), strict=True)
        }
        tree = {
            "cases": dict(Counter(case.dimension for case in self.cases)),
            "task_types": sorted({case.task_type for case in self.cases}),
            "level": LEVEL,
            "tie_rule": EDIT_TIE_RULE,
            "methods": methods,
            "comparisons": {name: _as_dicts(row) for name, row in self.comparisons.items()},
        }
        cleaned: dict[str, Any] = plain(tree)
        return cleaned

    def metrics(self) -> dict[str, float]:
        """The flat metrics for DVC and MLflow."""
        metrics: dict[str, float] = {"cases": len(self.cases)}
        for name, row in self.estimates.items():
            metrics |= {f"{name}.{metric}": value.mean for metric, value in row.items()}
        return metrics | _flat_differences(self.comparisons, DIMENSIONS)

    def table(self) -> pd.DataFrame:
        """One row per case and evaluator (``per_case.parquet``)."""
        rows = [
            {
                "case_id": case.id, "task_type": case.task_type, "dimension": case.dimension, "method": name,
                "better": scores.scores[position][0], "worse": scores.scores[position][1],
                "right": self.right[name][position],
            }
            for name, scores in self.scores.items()
            for position, case in enumerate(self.cases)
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def tables(self, published: Sequence[PublishedRow], wording: Wording = "rl") -> list[ResultTable]:
        """Accuracy, the published rows, paired differences, and accuracy by task type.

        The published rows are in the same table only if their queries had the same words.
        """
        rows = [
            [
                scores.label,
                *(interval(self.estimates[name][d]) for d in DIMENSIONS),
                *(number(self.estimates[name][f"{d}_geq"].mean) for d in DIMENSIONS),
                str(scores.num_failed()),
            ]
            for name, scores in self.scores.items()
        ]
        alike = wording == "published"
        head = ["judge", *DIMENSION_HEADS, *(f"{word}, ≥" for word in DIMENSION_HEADS), "not judged"]
        notes = [
            f"{len(self.cases)} cases; strict accuracy, macro mean over task types, with 95% intervals ({METHODS}).",
            EDIT_TIE_RULE,
            f"Asked in the words of {'the published figures' if alike else 'training and RL'}.",
        ]
        note = f"Measured by others on the public benchmark ({_sources(published)})."
        if alike:
            note = f"Rows marked “published”: {note}"
        else:
            note += " Asked in other words than above (edit_reward.wording “published” asks in these)."
        others = [[f"{row.model} (published)", *(number(row.figures[d]) for d in DIMENSIONS)] for row in published]
        tables = with_published(
            ResultTable("EditReward-Bench", head, rows, notes),
            ResultTable("EditReward-Bench, published", ["judge", *DIMENSION_HEADS], others, [note]),
            alike=alike,
        )
        if self.comparisons:
            differences = [[name, *(signed(row[d]) for d in DIMENSIONS)] for name, row in self.comparisons.items()]
            tables.append(ResultTable("Paired differences", ["judges", *DIMENSION_HEADS], differences, detail=True))
        for name, scores in self.scores.items():
            by_task = [[task, *(number(row[d]) for d in DIMENSIONS)] for task, row in self.by_task(name).items()]
            head = ["task type", *DIMENSION_HEADS]
            tables.append(ResultTable(f"By task type: {scores.label}", head, by_task, detail=True))
        return tables


def evaluate_edits(
    cases: Sequence[EditCase],
    scores: Mapping[str, CandidateScores],
    pairs: Sequence[tuple[str, str]],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> EditResult:
    """Accuracies of each evaluator and paired differences of the named pairs, with intervals over groups of cases."""
    right = {name: _right(one, ties=False) for name, one in scores.items()}
    with_ties = {name: _right(one, ties=True) for name, one in scores.items()}
    rows = {d: [number for number, case in enumerate(cases) if case.dimension == d] for d in DIMENSIONS}
    draws: dict[str, dict[str, Any]] = {
        d: {
            "classes": [cases[number].task_type for number in rows[d]],
            "groups": [cases[number].group for number in rows[d]],
            "resamples": resamples,
            "seed": seed,
        }
        for d in DIMENSIONS
    }
    estimates = {
        name: {
            f"{d}{suffix}": estimate(values[name][rows[d]], **draws[d])
            for d in DIMENSIONS
            for suffix, values in (("", right), ("_geq", with_ties))
        }
        for name in scores
    }
    comparisons = {
        f"{a} - {b}": {d: compare(right[a][rows[d]], right[b][rows[d]], **draws[d]) for d in DIMENSIONS}
        for a, b in pairs
    }
    return EditResult(list(cases), dict(scores), right, estimates, comparisons)


def _right(scores: CandidateScores, *, ties: bool) -> np.ndarray:
    """(cases,) of 1 where the better edit scores higher, or with ``ties`` as high; 0 where not, NaN without scores."""
    if scores.is_chance:
        return np.full(len(scores.scores), 0.5)
    better, worse = np.array(scores.scores, dtype=np.float64).reshape(-1, 2).T
    right = better >= worse if ties else better > worse
    return np.where(np.isnan(better) | np.isnan(worse), np.nan, right)


def _as_dicts(estimates: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    return {name: value.as_dict() for name, value in estimates.items()}


def _flat_differences(comparisons: Mapping[str, Mapping[str, Estimate]], names: Sequence[str]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for pair, row in comparisons.items():
        for name in names:
            metrics |= row[name].metrics(f"{pair.replace(' - ', '_minus_')}.{name}")
    return metrics


def _sources(published: Sequence[PublishedRow]) -> str:
    return ", ".join(dict.fromkeys(row.source for row in published))
