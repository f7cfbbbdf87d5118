"""Scores on disk while a benchmark runs, so that one that was stopped goes on where it was.

A table lies in the stage's folder of unfinished work, which is that of its code and libraries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io.content import content_of
from paco_core.io.pictures import picture_digests
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import Score
from paco_core.serving.cache import ScoreCache, question_key

if TYPE_CHECKING:
    from paco_core.config.params import RewardParams
    from paco_core.reward_model.yes_probability import Query, QueryScorer


@contextmanager
def remembering(path: Path) -> Iterator[ScoreCache]:
    """A table of scores that is removed once the block has succeeded.

    It must not outlive the run: a benchmark that is repeated to see whether the machine still computes the
    same would be shown what it computed before.
    """
    yield ScoreCache(path)
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)


class CachedScorer:
    """A scorer that asks ``load()``'s scorer only what the table does not hold; failures are asked again.

    Args:
        name: who answers, by content where it can be had.
        reckoning: how, see :func:`paco_core.serving.cache.question_key`.
    """

    def __init__(self, load: Callable[[], QueryScorer], name: str, reckoning: str, scores: ScoreCache) -> None:
        self._load, self.name, self.reckoning, self.scores = load, name, reckoning, scores
        self._scorer: QueryScorer | None = None

    def score(self, queries: Sequence[Query]) -> list[Score]:
        digests = iter(picture_digests([picture for query in queries for picture in query.pictures]))
        keys = [
            question_key(self.name, self.reckoning, query.instruction, *(next(digests) for _ in query.pictures))
            for query in queries
        ]
        known = self.scores.get(self.name, keys)
        missing = [number for number, key in enumerate(keys) if key not in known]
        fresh: dict[int, Score] = {}
        if missing:
            self._scorer = self._scorer or self._load()
            fresh = dict(zip(missing, self._scorer.score([queries[n] for n in missing]), strict=True))
            self.scores.put({keys[n]: score.value for n, score in fresh.items() if not math.isnan(score.value)})
        return [fresh[n] if n in fresh else Score(known[key]) for n, key in enumerate(keys)]


def reward_scorer(
    model: str | Path, reward: RewardParams, scores: ScoreCache, *, any_case: bool = False
) -> CachedScorer:
    """A reward model as a judge, loaded when it is first asked.

    Args:
        any_case: sum over yes, Yes, YES, y and Y (and no) among the top 20, instead of reading Yes and No.
    """

    def load() -> Scorer:
        scorer = Scorer.configured(model, reward)
        scorer.any_case = any_case
        return scorer

    return CachedScorer(load, content_of(model), reckoning(reward, any_case=any_case), scores)


def reckoning(reward: RewardParams, *, any_case: bool) -> str:
    """How a reward model in this process scores: what :meth:`Scorer.configured` takes of the parameters, and
    ``any_case``. Code and libraries are those of the table's folder."""
    bounds = f"{reward.min_pixels} to {reward.max_pixels} pixels"
    return f"{reward.dtype} {reward.device} {bounds}{' any case' if any_case else ''}"
