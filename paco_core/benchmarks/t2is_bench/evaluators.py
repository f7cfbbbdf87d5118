"""Evaluators of T2IS-Bench: aesthetics, alignment and consistency of sets, as the public evaluation computes them.

Consistency (chengyou-jia/T2IS, T2IS_Eval): P(Yes) against P(No) at the first answer token for each unordered pair of
panels, the earlier panel first; mean over pairs, then over the criteria of a dimension. Alignment: of each panel and
aspect the mean over the aspect's texts, then the mean over panels. VQAScore (arXiv 2404.01291) is the probability of
"Yes" to ``Does this figure show "{text}"? Please answer yes or no.``, by clip-flant5-xxl in the package t2v-metrics.
Aesthetics: a published predictor, 0 to 1, mean over the panels of a set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import pandas as pd
from PIL import Image as pil

from paco_core.benchmarks.t2is_bench.questions import ASPECTS, DIMENSIONS, Questions, validate_texts
from paco_core.benchmarks.t2is_bench.scorers import EndpointScorer, Predictor
from paco_core.benchmarks.t2is_bench.workers import aesthetics, vqascore
from paco_core.config.references import model_at
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.shapes import chunks
from paco_core.reward_model.yes_probability import PairQuery, PictureQuery, Query, QueryScorer
from paco_core.rewards.base import RewardBatch, validate_failed_share

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.benchmarks.t2is_bench.sets import PaintedSet
    from paco_core.config.params import RewardParams
    from paco_core.config.params_benchmarks import PredictorParams, T2isBenchParams, YesNoJudge
    from paco_core.data.records.records import PromptRecord

VQASCORE, AESTHETICS = "t2v-metrics", "aesthetic-predictor-v2-5"  # as the package index names them
#: Pixels of a panel's sides in published questions: 512, which Qwen's preprocessing makes the next multiple of 28.
SIDE = 504
ALIGNMENT_TEMPLATE = "t2is_bench_shows"
CONSISTENCY_TEMPLATES = {"published": "t2is_bench_criteria", "rl": "criteria"}
BATCH = 16  # sets whose images are in memory

ScoreIndex = tuple[int, int, int]  # row, column, part (a criterion or a panel)


class SetEvaluator(Protocol):
    """Scores sets query by query; ``causes`` counts failures."""

    columns: tuple[str, ...]
    causes: Counter[str]

    def count(self, record: PromptRecord) -> int:
        """How many queries one set of a record needs."""

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The columns, (N,) each."""


class Aesthetics:
    """Column ``aesthetics``; NaN where a panel of the set has no score."""

    columns: tuple[str, ...] = ("aesthetics",)

    def __init__(self, scorer: QueryScorer) -> None:
        self.scorer = scorer
        self.causes: Counter[str] = Counter()

    def count(self, record: PromptRecord) -> int:
        rows, columns = record.grid
        return rows * columns

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        scores = self.scorer.score([PictureQuery(panel, "") for panels in batch.panels for panel in panels])
        self.causes.update(score.cause for score in scores if score.cause is not None)
        rows = np.repeat(np.arange(len(batch)), [len(panels) for panels in batch.panels])
        totals = np.bincount(rows, weights=[score.value for score in scores], minlength=len(batch))
        return {"aesthetics": totals / np.bincount(rows, minlength=len(batch))}


class AlignmentWithTexts:
    """Columns ``entity``, ``attribute`` and ``relation``.

    A set without a text of an aspect, or with a query that failed, has NaN there.

    Args:
        wording: "published" asks VQAScore's question, "text" sends a text as it is: to VQAScore itself, which asks that
            question, or where the texts are questions.
    """

    columns = tuple(name.lower() for name in ASPECTS)

    def __init__(self, scorer: QueryScorer, questions: Questions, wording: Literal["published", "text"]) -> None:
        self.scorer, self.questions, self.wording = scorer, questions, wording
        self.causes: Counter[str] = Counter()

    def count(self, record: PromptRecord) -> int:
        """How many queries one set of a record needs.

        Raises:
            DataError: when no file says what its panels should show.
        """
        panels = validate_texts(self.questions.of(record).panels)
        return sum(len(texts) for panel in panels for texts in panel.values())

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        queries: list[tuple[ScoreIndex, Query]] = []  # of set, aspect, panel
        for row, (record, panels) in enumerate(zip(batch.records, batch.panels, strict=True)):
            shows = self.questions.of(record).panels or ()
            for number, (panel, texts) in enumerate(zip(panels, shows, strict=True)):
                for column, aspect in enumerate(ASPECTS):
                    for text in texts.get(aspect, ()):
                        queries.append(((row, column, number), PictureQuery(panel, self._question(text))))
        return mean_scores(self.scorer, queries, len(batch), self.columns, self.causes)

    def _question(self, text: str) -> str:
        return render_instruction(ALIGNMENT_TEMPLATE, criterion=text) if self.wording == "published" else text


class ConsistencyByCriteria:
    """Columns ``identity``, ``style`` and ``logic``.

    A set without a criterion of a dimension, or with a query that failed, has NaN there.

    Args:
        wording: "published" asks the benchmark's question about panels of 504 px, "rl" the template ``criteria`` about
            panels as they are.
    """

    columns = tuple(name.lower() for name in DIMENSIONS)

    def __init__(self, scorer: QueryScorer, questions: Questions, wording: Literal["published", "rl"]) -> None:
        self.scorer, self.questions, self.wording = scorer, questions, wording
        self.causes: Counter[str] = Counter()

    def count(self, record: PromptRecord) -> int:
        rows, columns = record.grid
        pairs = rows * columns * (rows * columns - 1) // 2
        return pairs * sum(len(texts) for texts in self.questions.of(record).criteria.values())

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        queries: list[tuple[ScoreIndex, Query]] = []  # of set, dimension, criterion
        for row, (record, panels) in enumerate(zip(batch.records, batch.panels, strict=True)):
            pairs = list(combinations(self._resized(panels), 2))
            criteria = self.questions.of(record).criteria
            for column, dimension in enumerate(DIMENSIONS):
                for number, text in enumerate(criteria.get(dimension, ())):
                    question = render_instruction(CONSISTENCY_TEMPLATES[self.wording], criterion=text)
                    queries += [((row, column, number), PairQuery(*pair, question)) for pair in pairs]
        return mean_scores(self.scorer, queries, len(batch), self.columns, self.causes)

    def _resized(self, panels: Sequence[Image]) -> Sequence[Image]:
        if self.wording == "rl":
            return panels
        return [panel.resize((SIDE, SIDE), pil.Resampling.BICUBIC) for panel in panels]


def mean_scores(
    scorer: QueryScorer,
    queries: Sequence[tuple[ScoreIndex, Query]],
    rows: int,
    columns: Sequence[str],
    causes: Counter[str],
) -> dict[str, np.ndarray]:
    """Column -> (rows,) means of the scores of the queries that have a place in it (:func:`mean_of_means`).

    Args:
        causes: counts why queries failed.
    """
    scores = scorer.score([query for _, query in queries])
    causes.update(score.cause for score in scores if score.cause is not None)
    means = mean_of_means([place for place, _ in queries], [score.value for score in scores], (rows, len(columns)))
    return dict(zip(columns, means.T, strict=True))


def mean_of_means(places: Sequence[ScoreIndex], values: Sequence[float], shape: tuple[int, int]) -> np.ndarray:
    """Mean of each cell (row, column) over its parts (criteria or panels), of each part over its values.

    Args:
        places: (row, column, part) of each value.
        shape: rows and columns.

    Returns:
        (rows, columns) float64; NaN in a cell without values, or with a NaN among them.
    """
    by_part: dict[ScoreIndex, list[float]] = {}
    for place, value in zip(places, values, strict=True):
        by_part.setdefault(place, []).append(value)
    by_cell: dict[tuple[int, int], list[float]] = {}
    for (row, column, _), part in by_part.items():
        by_cell.setdefault((row, column), []).append(float(np.mean(part)))
    means = np.full(shape, np.nan)
    for cell, part_means in by_cell.items():
        means[cell] = np.mean(part_means)
    return means


@dataclass(frozen=True)
class BenchmarkPart:
    """One part of a benchmark: how it is measured, by which model, in which words."""

    measure: SetEvaluator
    judge: str
    wording: str


@contextmanager
def open_parts(
    params: T2isBenchParams, reward: RewardParams, questions: Questions, root: Path
) -> Iterator[dict[str, BenchmarkPart]]:
    """The parts by name: "aesthetics", "alignment", "consistency"; those that are null are left out.

    Args:
        reward: number format, device and pixel bounds of a model that scores in this process.
    """
    parts: dict[str, BenchmarkPart] = {}
    with ExitStack() as stack:

        def predictor(worker: ModuleType, options: PredictorParams, package: str) -> Predictor:
            process = Predictor(worker, options, package)
            stack.callback(process.close)
            return process

        if params.aesthetics is not None:
            scorer = predictor(aesthetics, params.aesthetics, AESTHETICS)
            parts["aesthetics"] = BenchmarkPart(Aesthetics(scorer), AESTHETICS, "")
        if (by := params.alignment) is not None and by.vqascore is not None:
            scorer = predictor(vqascore, by.vqascore, VQASCORE)
            name = f"VQAScore, {by.vqascore.model or 'clip-flant5-xxl'}"
            parts["alignment"] = BenchmarkPart(AlignmentWithTexts(scorer, questions, "text"), name, "published")
        elif by is not None:
            alignment = AlignmentWithTexts(load_scorer(by, reward, root), questions, by.wording)
            parts["alignment"] = BenchmarkPart(alignment, scorer_name(by), by.wording)
        if (of := params.consistency) is not None:
            consistency = ConsistencyByCriteria(load_scorer(of, reward, root), questions, of.wording)
            parts["consistency"] = BenchmarkPart(consistency, scorer_name(of), of.wording)
        yield parts


def count_queries(sets: Sequence[PaintedSet], parts: Mapping[str, BenchmarkPart]) -> dict[str, int]:
    """How many queries each part needs."""
    return {name: sum(part.measure.count(s.record) for s in sets) for name, part in parts.items()}


def evaluate_sets(
    sets: Sequence[PaintedSet],
    parts: Mapping[str, BenchmarkPart],
    max_failed_share: float,
    advance: Callable[[int], object],
) -> tuple[pd.DataFrame, Counter[str]]:
    """One row per set: method, prompt_id, seed, panels, and the columns of each part (NaN = not measured).

    Args:
        advance: called with the number of answered queries.

    Returns:
        The table, and the causes of failed queries.

    Raises:
        DataError: when more than ``max_failed_share`` of the queries of a part failed.
    """
    frames = []
    for chunk in chunks(sets, BATCH):
        batch = RewardBatch([s.record for s in chunk], [s.panels() for s in chunk])
        columns = {
            "method": [s.method for s in chunk],
            "prompt_id": [s.record.idx for s in chunk],
            "seed": pd.array([s.seed for s in chunk], dtype="Int64"),
            "panels": [len(panels) for panels in batch.panels],
        }
        frame = pd.DataFrame(columns)
        for part in parts.values():
            frame = frame.assign(**part.measure.measure(batch))
            advance(sum(part.measure.count(s.record) for s in chunk))
        frames.append(frame)
    causes = Counter[str]()
    for name, count in count_queries(sets, parts).items():
        failed = parts[name].measure.causes
        validate_failed_share(failed.total(), count, max_failed_share, f"queries about {name}", failed)
        causes += failed
    return pd.concat(frames, ignore_index=True), causes


def load_scorer(params: YesNoJudge, reward: RewardParams, root: Path) -> QueryScorer:
    """Load the model that answers yes or no."""
    if params.endpoint is not None:
        return EndpointScorer(params.endpoint)
    assert params.model is not None, "params_benchmarks.py sees to it"
    return Scorer.configured(model_at(root, params.model, "model of a benchmark"), reward)


def scorer_name(params: YesNoJudge) -> str:
    """The name of :func:`load_scorer`'s model in tables."""
    return params.endpoint.model if params.endpoint is not None else str(params.model)
