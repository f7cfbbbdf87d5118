"""The measures of T2IS-Bench that the parameters ask for, each with the name of its judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

import pandas as pd

from paco_core.benchmarks.endpoint_judge import EndpointJudge
from paco_core.benchmarks.t2is_bench.aesthetics import Aesthetics
from paco_core.benchmarks.t2is_bench.alignment import AlignmentWithTexts
from paco_core.benchmarks.t2is_bench.consistency import ConsistencyByCriteria
from paco_core.benchmarks.t2is_bench.predictor import Predictor
from paco_core.benchmarks.t2is_bench.texts import Questions
from paco_core.benchmarks.t2is_bench.workers import aesthetics, vqascore
from paco_core.config.references import model_at
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.shapes import chunks
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    from collections import Counter

    import numpy as np

    from paco_core.benchmarks.t2is_bench.sets import PaintedSet
    from paco_core.config.params import RewardParams
    from paco_core.config.params_benchmarks import PredictorParams, T2isBenchParams, YesNoJudge
    from paco_core.data.records.records import PromptRecord
    from paco_core.reward_model.yes_probability import QueryScorer

VQASCORE, AESTHETICS = "t2v-metrics", "aesthetic-predictor-v2-5"  # as the package index names them

AT_ONCE = 16  # sets whose pictures are in memory


class SetMeasure(Protocol):
    """Columns of figures of sets, asked question by question."""

    columns: tuple[str, ...]
    causes: Counter[str]

    def count(self, record: PromptRecord) -> int: ...

    def measure(self, batch: RewardBatch) -> dict[str, np.ndarray]:
        """The columns, (N,) each."""


@dataclass(frozen=True)
class BenchmarkPart:
    """One of the three parts of the benchmark: how it is measured, by whom, in which words."""

    measure: SetMeasure
    judge: str
    wording: str


@contextmanager
def parts(
    params: T2isBenchParams, reward: RewardParams, questions: Questions, root: Path
) -> Iterator[dict[str, BenchmarkPart]]:
    """The parts by name: "aesthetics", "alignment", "consistency"; those that are null are left out.

    Args:
        reward: number format, device and pixel bounds of a model that judges in this process.
    """
    found: dict[str, BenchmarkPart] = {}
    with ExitStack() as stack:

        def predicted(worker: ModuleType, given: PredictorParams, package: str) -> Predictor:
            predictor = Predictor(worker, given, package)
            stack.callback(predictor.close)
            return predictor

        if params.aesthetics is not None:
            scorer = predicted(aesthetics, params.aesthetics, AESTHETICS)
            found["aesthetics"] = BenchmarkPart(Aesthetics(scorer), AESTHETICS, "")
        if (asked := params.alignment) is not None and asked.vqascore is not None:
            scorer = predicted(vqascore, asked.vqascore, VQASCORE)
            name = f"VQAScore, {asked.vqascore.model or 'clip-flant5-xxl'}"
            found["alignment"] = BenchmarkPart(AlignmentWithTexts(scorer, questions, "text"), name, "published")
        elif asked is not None:
            measure = AlignmentWithTexts(judge(asked, reward, root), questions, asked.wording)
            found["alignment"] = BenchmarkPart(measure, judge_name(asked), asked.wording)
        if (by := params.consistency) is not None:
            by_criteria = ConsistencyByCriteria(judge(by, reward, root), questions, by.wording)
            found["consistency"] = BenchmarkPart(by_criteria, judge_name(by), by.wording)
        yield found


def measured(
    sets: Sequence[PaintedSet], asked: Mapping[str, BenchmarkPart], advance: Callable[[int], object]
) -> pd.DataFrame:
    """One row a set: method, prompt_id, seed, panels, and the columns of each part (NaN = not measured).

    Args:
        advance: called with the number of questions that were answered.
    """
    frames = []
    for some in chunks(sets, AT_ONCE):
        batch = RewardBatch([s.record for s in some], [s.panels() for s in some])
        columns = {
            "method": [s.method for s in some],
            "prompt_id": [s.record.idx for s in some],
            "seed": pd.array([s.seed for s in some], dtype="Int64"),
            "panels": [len(panels) for panels in batch.panels],
        }
        frame = pd.DataFrame(columns)
        for part in asked.values():
            frame = frame.assign(**part.measure.measure(batch))
            advance(sum(part.measure.count(s.record) for s in some))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def judge(params: YesNoJudge, reward: RewardParams, root: Path) -> QueryScorer:
    """Load the model that answers yes or no."""
    if params.endpoint is not None:
        return EndpointJudge(params.endpoint)
    assert params.model is not None, "params_benchmarks.py sees to it"
    return Scorer.configured(model_at(root, params.model, "model of a benchmark"), reward)


def judge_name(params: YesNoJudge) -> str:
    """As tables name it."""
    return params.endpoint.model if params.endpoint is not None else str(params.model)
