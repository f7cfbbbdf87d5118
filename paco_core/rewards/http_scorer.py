"""Any scorer behind an address: one JSON request a batch, scores and causes back, known pictures not asked again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, ValidationError

from paco_core.data.llm.chat_protocol import data_url
from paco_core.io.http_client import HttpClient, Patience, RequestFailed
from paco_core.io.pictures import picture_digests
from paco_core.io.secrets import one_line
from paco_core.io.validation import StrictModel, first_fault
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.needs import need_key, need_section
from paco_core.serving.cache import ANY_NUMBER, ScoreCache, query_key

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import HttpScorer, RewardTerm
    from paco_core.rewards.sources import Sources

SCORES = Path(".paco/rewards/http.db")
NO_SCORE = "the scorer gave no score and no cause"


class _Answer(StrictModel):
    scores: list[Annotated[float, Field(allow_inf_nan=True)] | None]  # a NaN fails its own sample alone
    causes: list[str | None] | None = None


class HttpReward:
    """Asks a scorer of anybody's about whole pictures; its request and answer are in ``docs/reference/rewards.md``.

    A sample without a score is NaN and counted by the cause that the scorer gave, or by what went wrong on the way.

    Args:
        scorer: where it is and how long to wait for it.
        cache: scores that were given before, by the scorer's ``model`` and by the content of a sample.

    Raises:
        DataError: when the environment variable that should hold the key is empty.
    """

    name = "http"

    def __init__(self, scorer: HttpScorer, cache: ScoreCache) -> None:
        key = need_key(scorer.url, scorer.api_key_env)
        parts = urlsplit(scorer.url)
        patience = Patience(scorer.retries, budget_s=scorer.budget_s)
        self._http = HttpClient(f"{parts.scheme}://{parts.netloc}", scorer.timeout_s, patience, key)
        self._path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        self._model, self._cache = scorer.model, cache
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        samples = [
            {"id": record.idx, "prompt": record.prompt, "layout": record.layout, "theme": record.theme}
            for record in batch.records
        ]
        references = batch.references or [()] * len(batch)
        pictures = [[picture, *more] for picture, more in zip(batch.whole, references, strict=True)]
        flat = iter(picture_digests([picture for shown in pictures for picture in shown]))
        digests = [[next(flat) for _ in shown] for shown in pictures]
        keys = [sample_key(self._model, sample, shown) for sample, shown in zip(samples, digests, strict=True)]
        places = {key: row for row, key in enumerate(keys)}  # equal samples are asked once
        found: dict[bytes, float | str] = {**self._cache.get(list(places))}
        unknown = [(key, row) for key, row in places.items() if key not in found]
        if unknown:
            asked = [self._with_pictures(samples[row], pictures[row]) for _, row in unknown]
            given = dict(zip((key for key, _ in unknown), self._ask(asked), strict=True))
            self._cache.put({key: value for key, value in given.items() if isinstance(value, float)})
            found |= given
        for cause in (found[key] for key in keys):
            if isinstance(cause, str):
                self.causes[cause] = self.causes.get(cause, 0) + 1
        return np.array([math.nan if isinstance(found[key], str) else found[key] for key in keys], dtype=np.float64)

    @staticmethod
    def _with_pictures(sample: dict[str, str], pictures: Sequence[Image]) -> dict[str, Any]:
        """The picture, the one that it is an edit of, and further references, where there are any."""
        picture, *references = map(data_url, pictures)
        first = {"reference": references[0]} if references else {}
        further = {"further_references": references[1:]} if len(references) > 1 else {}
        return {**sample, "picture": picture, **first, **further}

    def _ask(self, samples: Sequence[dict[str, Any]]) -> list[float | str]:
        """A score for each sample, or why there is none."""
        body = json.dumps({"model": self._model, "samples": samples}).encode()
        try:
            answer = _Answer.model_validate(self._http.call("POST", self._path, body))
        except RequestFailed as error:
            return [error.cause] * len(samples)
        except ValidationError as error:
            return [one_line(f"the answer has another form ({first_fault(error)})")] * len(samples)
        causes = answer.causes or [None] * len(samples)
        if not len(answer.scores) == len(causes) == len(samples):
            lengths = f"{len(answer.scores)} scores and {len(causes)} causes for {len(samples)} samples"
            return [f"the answer has {lengths}"] * len(samples)
        return [_score_or_cause(score, cause) for score, cause in zip(answer.scores, causes, strict=True)]


def sample_key(model: str, sample: Mapping[str, str], pictures: Sequence[str]) -> bytes:
    """Under which the score of a sample is kept.

    Depends on: the scorer's name with its version (``model``), all texts of the sample that are sent, and the digests
    of its ``pictures``, in order. The address is left out: one name is taken to mean the same scorer everywhere, which
    no address proves.
    """
    return query_key(model, "http", json.dumps(sample, sort_keys=True), *pictures)


def _score_or_cause(score: float | None, cause: str | None) -> float | str:
    if score is None:
        return one_line(cause or NO_SCORE)  # causes are counted by their text
    return float(score) if abs(score) <= ANY_NUMBER[1] else one_line(f"the score is {score}")


def build(term: RewardTerm, sources: Sources) -> HttpReward:
    """The reward of a term."""
    scorer: HttpScorer = need_section("http", term)
    return HttpReward(scorer, ScoreCache(sources.root / SCORES, ANY_NUMBER))
