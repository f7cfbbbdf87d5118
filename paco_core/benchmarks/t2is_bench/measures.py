"""The measures of T2IS-Bench that the parameters ask for, each with the name of its judge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from paco_core.benchmarks.answers_cache import CachedScorer, reward_scorer
from paco_core.benchmarks.endpoint_judge import EndpointJudge
from paco_core.benchmarks.t2is_bench.aesthetics import Aesthetics
from paco_core.benchmarks.t2is_bench.alignment import AlignmentWithTexts
from paco_core.benchmarks.t2is_bench.consistency import ConsistencyByCriteria
from paco_core.benchmarks.t2is_bench.predictor import Predictor
from paco_core.benchmarks.t2is_bench.texts import Questions
from paco_core.benchmarks.t2is_bench.workers import aesthetics, vqascore
from paco_core.config.references import model_at
from paco_core.io.content import content_of
from paco_core.runtime.code.environment import environment_digest

if TYPE_CHECKING:
    from collections import Counter

    import numpy as np

    from paco_core.config.params import RewardParams
    from paco_core.config.params_benchmarks import AlignmentParams, JudgeParams, PredictorParams, T2isBenchParams
    from paco_core.data.records.records import PromptRecord
    from paco_core.rewards.base import RewardBatch
    from paco_core.serving.cache import ScoreCache

VQASCORE, AESTHETICS = "t2v-metrics", "aesthetic-predictor-v2-5"  # as the package index names them


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
    params: T2isBenchParams, reward: RewardParams, questions: Questions, root: Path, scores: ScoreCache
) -> Iterator[dict[str, BenchmarkPart]]:
    """The parts by name: "aesthetics", "alignment", "consistency"; those that are null are left out.

    Args:
        reward: number format, device and pixel bounds of a model that judges in this process.
        scores: what was asked before.
    """
    found: dict[str, BenchmarkPart] = {}
    with ExitStack() as stack:

        def predicted(worker: ModuleType, given: PredictorParams, package: str) -> CachedScorer:
            predictor = Predictor(worker, given, package)
            stack.callback(predictor.close)
            return CachedScorer(lambda: predictor, package, predictor_reckoning(given), scores)

        if params.aesthetics is not None:
            scorer = predicted(aesthetics, params.aesthetics, AESTHETICS)
            found["aesthetics"] = BenchmarkPart(Aesthetics(scorer), AESTHETICS, "")
        if (asked := params.alignment) is not None and asked.vqascore is not None:
            scorer = predicted(vqascore, asked.vqascore, VQASCORE)
            name = f"VQAScore, {asked.vqascore.model or 'clip-flant5-xxl'}"
            found["alignment"] = BenchmarkPart(AlignmentWithTexts(scorer, questions, "text"), name, "published")
        elif asked is not None:
            scorer = _judge(asked, reward, root, scores)
            measure = AlignmentWithTexts(scorer, questions, asked.wording)
            found["alignment"] = BenchmarkPart(measure, _name(asked), asked.wording)
        if (judge := params.consistency) is not None:
            by_criteria = ConsistencyByCriteria(_judge(judge, reward, root, scores), questions, judge.wording)
            found["consistency"] = BenchmarkPart(by_criteria, _name(judge), judge.wording)
        yield found


def predictor_reckoning(given: PredictorParams) -> str:
    """What a predictor's scores depend on beside its name: parameters, and the packages of its environment."""
    model = content_of(Path(given.model)) if given.model and Path(given.model).exists() else given.model
    return f"{given} {model} {environment_digest(given.python)}"


def _judge(params: JudgeParams | AlignmentParams, reward: RewardParams, root: Path, scores: ScoreCache) -> CachedScorer:
    if params.endpoint is not None:
        endpoint = params.endpoint  # one name means the same weights wherever it is served, as in chat_protocol.key_of
        return CachedScorer(lambda: EndpointJudge(endpoint), _name(params), str(endpoint.options), scores)
    assert params.model is not None, "params_benchmarks.py sees to it"
    return reward_scorer(model_at(root, params.model, "model of t2is_bench"), reward, scores)


def _name(params: JudgeParams | AlignmentParams) -> str:
    return params.endpoint.model if params.endpoint is not None else str(params.model)
