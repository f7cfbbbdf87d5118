"""EditReward-Bench (EditScore, arXiv 2509.23909), and MMRB2: does a reward model rank two edits as people do?

Prompt following and consistency are P(Yes) of the two editing instructions; overall is the square root of their product
(PaCo-RL, arXiv 2512.04784). All evaluators score the same held-out cases, so their differences are paired.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pandas as pd

from paco_core.benchmarks.published import EDIT_REWARD_BENCH, sources
from paco_core.benchmarks.rankings import BATCH, CandidateScores, Embedder, score_once
from paco_core.benchmarks.statistics import METHODS, Estimate, estimate, estimate_difference, flat_differences
from paco_core.benchmarks.tables import ResultTable, difference_tables, interval, number, with_published
from paco_core.grpo.metrics import LEVEL
from paco_core.io.answer import to_jsonable
from paco_core.io.pictures import picture_digest
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.shapes import chunks
from paco_core.reward_model.yes_probability import PairQuery

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.benchmarks.published import PublishedRow
    from paco_core.reward_model.yes_probability import PairScorer

Wording = Literal["rl", "published"]

FOLLOWING, CONSISTENCY, OVERALL = "prompt_following", "consistency", "overall"
DIMENSIONS = (FOLLOWING, CONSISTENCY, OVERALL)
HEADS = {FOLLOWING: "prompt following", CONSISTENCY: "consistency", OVERALL: "overall"}
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
    "Strict accuracy: a case is correct if the better edit has the higher score, and a tie is wrong. The ≥ variant "
    "counts a tie as correct. A case without a score is left out and counted."
)


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
    result, scores_by_query = CandidateScores(label, []), dict[tuple[str, str, str], float]()
    for part in chunks(cases, BATCH // 4):
        queries: dict[tuple[str, str, str], PairQuery] = {}
        keys: list[list[list[tuple[str, str, str]]]] = []  # case, candidate, template
        for case in part:
            source, *edits = case.images()
            pairs = [(source, edit if edit.size == source.size else edit.resize(source.size)) for edit in edits]
            texts = [
                render_instruction(name, instruction=case.instruction)
                for name in EDIT_TEMPLATES[wording][case.dimension]
            ]
            digests = [(picture_digest(first), picture_digest(second)) for first, second in pairs]
            keys.append([[(text, *digest) for text in texts] for digest in digests])
            queries |= {
                (text, *digest): PairQuery(*pair, text)
                for pair, digest in zip(pairs, digests, strict=True)
                for text in texts
                if (text, *digest) not in scores_by_query
            }
        scores_by_query |= score_once(scorer, queries, result.causes)
        result.scores += [tuple(_overall([scores_by_query[key] for key in row]) for row in rows) for rows in keys]
        advance(count_edit_queries(part))
    return result


def count_edit_queries(cases: Iterable[EditCase]) -> int:
    """How many queries :func:`score_edits` needs, before equal ones are merged."""
    return sum(2 * len(EDIT_TEMPLATES["rl"][case.dimension]) for case in cases)


def _overall(scores: Sequence[float]) -> float:
    return scores[0] if len(scores) == 1 else math.sqrt(scores[0] * scores[1])


def score_edit_embeddings(label: str, embedder: Embedder, cases: Sequence[EditCase]) -> CandidateScores:
    """Cosine of source and edit. Embeddings read no instruction, so only cases of consistency get scores."""
    scores: list[tuple[float, ...]] = [(math.nan, math.nan)] * len(cases)
    rows = [row for row, case in enumerate(cases) if case.dimension == CONSISTENCY]
    vectors = embedder.embed([image for row in rows for image in cases[row].images()])
    for position, row in enumerate(rows):
        source, better, worse = vectors[3 * position : 3 * position + 3]
        scores[row] = (float(source @ better), float(source @ worse))
    return CandidateScores(label, scores)


@dataclass(frozen=True)
class EditResult:
    """Results of a benchmark of edits; dictionaries are by evaluator, comparisons by ``"first - second"``.

    Accuracy is the mean within each task type, then over task types.
    """

    cases: list[EditCase]
    scores: dict[str, CandidateScores]
    right: dict[str, np.ndarray]  # (cases,): 1 where the better edit scores higher, NaN without scores
    estimates: dict[str, dict[str, Estimate]]  # by dimension: strict accuracy; by "<dimension>_geq": with ties right
    comparisons: dict[str, dict[str, Estimate]]  # by dimension
    benchmark: str = EDIT_REWARD_BENCH

    @property
    def dimensions(self) -> list[str]:
        """The dimensions of the cases. MMRB2 has one."""
        return _dimensions(self.cases)

    def by_task(self, name: str) -> dict[str, dict[str, float]]:
        """Task type -> dimension -> strict accuracy."""
        tasks = sorted({case.task_type for case in self.cases})
        return {task: {d: self._accuracy(name, task, d) for d in self.dimensions} for task in tasks}

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
                "accuracy": {d: {"strict": row[d], "geq": row[f"{d}_geq"]} for d in self.dimensions},
                "by_task": self.by_task(name),
            }
            for (name, scores), row in zip(self.scores.items(), self.estimates.values(), strict=True)
        }
        tree = {
            "benchmark": self.benchmark,
            "cases": dict(Counter(case.dimension for case in self.cases)),
            "task_types": sorted({case.task_type for case in self.cases}),
            "level": LEVEL,
            "tie_rule": EDIT_TIE_RULE,
            "methods": methods,
            "comparisons": self.comparisons,
        }
        cleaned: dict[str, Any] = to_jsonable(tree)
        return cleaned

    def metrics(self) -> dict[str, float]:
        """The flat metrics for DVC and MLflow."""
        metrics: dict[str, float] = {"cases": len(self.cases)}
        for name, row in self.estimates.items():
            metrics |= {f"{name}.{metric}": value.mean for metric, value in row.items()}
        return metrics | flat_differences(self.comparisons, self.dimensions)

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
        heads = {d: HEADS[d] for d in self.dimensions}
        rows = [
            [
                scores.label,
                *(interval(self.estimates[name][d]) for d in heads),
                *(number(self.estimates[name][f"{d}_geq"].mean) for d in heads),
                str(scores.num_failed()),
            ]
            for name, scores in self.scores.items()
        ]
        same_queries = wording == "published" and self.benchmark == EDIT_REWARD_BENCH
        head = ["model", *heads.values(), *(f"{word}, ≥" for word in heads.values()), "not scored"]
        notes = [
            f"{len(self.cases)} cases; strict accuracy, macro mean over task types, with 95% intervals ({METHODS}).",
            EDIT_TIE_RULE,
            f"Asked in the words of {'the published figures' if same_queries else 'training and RL'}.",
        ]
        note = f"Measured by others on the public benchmark ({sources(published)})."
        if same_queries:
            note = f"Rows marked “published”: {note}"
        elif self.benchmark == EDIT_REWARD_BENCH:
            note += " Asked in other words than above (edit_reward.wording “published” asks in these)."
        else:
            note += " Each model saw both edits at once."
        published_rows = [[f"{row.model} (published)", *(number(row.figures[d]) for d in heads)] for row in published]
        tables = with_published(
            ResultTable(self.benchmark, head, rows, notes),
            ResultTable(f"{self.benchmark}, published", ["model", *heads.values()], published_rows, [note]),
            same_queries=same_queries,
        )
        tables += difference_tables(self.comparisons, heads)
        for name, scores in self.scores.items():
            by_task = [[task, *(number(row[d]) for d in heads)] for task, row in self.by_task(name).items()]
            head = ["task type", *heads.values()]
            tables.append(ResultTable(f"By task type: {scores.label}", head, by_task, detail=True))
        return tables


def evaluate_edits(
    cases: Sequence[EditCase],
    scores: Mapping[str, CandidateScores],
    pairs: Sequence[tuple[str, str]],
    *,
    resamples: int = 2000,
    seed: int = 0,
    benchmark: str = EDIT_REWARD_BENCH,
) -> EditResult:
    """Accuracies of each evaluator and paired differences of the named pairs, with intervals over groups of cases."""
    right = {name: _right(method_scores, ties=False) for name, method_scores in scores.items()}
    with_ties = {name: _right(method_scores, ties=True) for name, method_scores in scores.items()}
    dimensions = _dimensions(cases)
    rows = {d: [number for number, case in enumerate(cases) if case.dimension == d] for d in dimensions}
    draws: dict[str, dict[str, Any]] = {
        d: {
            "classes": [cases[number].task_type for number in rows[d]],
            "groups": [cases[number].group for number in rows[d]],
            "resamples": resamples,
            "seed": seed,
        }
        for d in dimensions
    }
    estimates = {
        name: {
            f"{d}{suffix}": estimate(values[name][rows[d]], **draws[d])
            for d in dimensions
            for suffix, values in (("", right), ("_geq", with_ties))
        }
        for name in scores
    }
    comparisons = {
        f"{a} - {b}": {d: estimate_difference(right[a][rows[d]], right[b][rows[d]], **draws[d]) for d in dimensions}
        for a, b in pairs
    }
    return EditResult(list(cases), dict(scores), right, estimates, comparisons, benchmark)


def _dimensions(cases: Sequence[EditCase]) -> list[str]:
    present = {case.dimension for case in cases}
    return [dimension for dimension in DIMENSIONS if dimension in present]


def _right(scores: CandidateScores, *, ties: bool) -> np.ndarray:
    """(cases,) of 1 where the better edit scores higher, or with ``ties`` as high; 0 where not, NaN without scores."""
    if scores.is_chance:
        return np.full(len(scores.scores), 0.5)
    better, worse = np.array(scores.scores, dtype=np.float64).reshape(-1, 2).T
    right = better >= worse if ties else better > worse
    return np.where(np.isnan(better) | np.isnan(worse), np.nan, right)
