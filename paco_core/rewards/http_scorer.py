"""HTTP scorers: one JSON request per batch returns scores and causes. Scores are cached by content."""

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
from paco_core.io.validation import StrictModel, first_validation_error
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.needs import require_key, require_section
from paco_core.serving.cache import ANY_NUMBER, ScoreCache, query_key

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import HttpScorer, RewardTerm
    from paco_core.rewards.sources import Sources

SCORES = Path(".paco/rewards/http.db")
NO_SCORE = "the scorer gave no score and no cause"


class _Answer(StrictModel):
    scores: list[Annotated[float, Field(allow_inf_nan=True)] | None]  # a NaN affects its sample only
    causes: list[str | None] | None = None


class HttpReward:
    """A custom scorer of complete images. ``docs/reference/rewards.md`` describes request and response.

    A sample without a score is NaN. Its cause is counted: the cause in the response, or the error of the request.

    Args:
        scorer: address and timeouts.
        cache: previous scores, by the ``model`` of the scorer and the content of the sample.

    Raises:
        DataError: if the environment variable of the key is empty.
    """

    name = "http"

    def __init__(self, scorer: HttpScorer, cache: ScoreCache) -> None:
        key = require_key(scorer.url, scorer.api_key_env)
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
        pictures = [[picture, *of_row] for picture, of_row in zip(batch.whole, references, strict=True)]
        flat = iter(picture_digests([picture for row in pictures for picture in row]))
        digests = [[next(flat) for _ in row] for row in pictures]
        keys = [sample_key(self._model, sample, row) for sample, row in zip(samples, digests, strict=True)]
        places = {key: row for row, key in enumerate(keys)}  # equal samples are requested once
        results: dict[bytes, float | str] = {**self._cache.get(list(places))}
        missing = [(key, row) for key, row in places.items() if key not in results]
        if missing:
            requests = [self._with_pictures(samples[row], pictures[row]) for _, row in missing]
            responses = dict(zip((key for key, _ in missing), self._request_scores(requests), strict=True))
            self._cache.put({key: value for key, value in responses.items() if isinstance(value, float)})
            results |= responses
        for cause in (results[key] for key in keys):
            if isinstance(cause, str):
                self.causes[cause] = self.causes.get(cause, 0) + 1
        return np.array([math.nan if isinstance(results[key], str) else results[key] for key in keys], dtype=np.float64)

    @staticmethod
    def _with_pictures(sample: dict[str, str], pictures: Sequence[Image]) -> dict[str, Any]:
        """Add the image, the edited image, and further references, if there are any."""
        picture, *references = map(data_url, pictures)
        first = {"reference": references[0]} if references else {}
        further = {"further_references": references[1:]} if len(references) > 1 else {}
        return {**sample, "picture": picture, **first, **further}

    def _request_scores(self, samples: Sequence[dict[str, Any]]) -> list[float | str]:
        """A score for each sample, or the cause of its failure."""
        body = json.dumps({"model": self._model, "samples": samples}).encode()
        try:
            answer = _Answer.model_validate(self._http.call("POST", self._path, body))
        except RequestFailed as error:
            return [error.cause] * len(samples)
        except ValidationError as error:
            return [one_line(f"the answer has another form ({first_validation_error(error)})")] * len(samples)
        causes = answer.causes or [None] * len(samples)
        if not len(answer.scores) == len(causes) == len(samples):
            lengths = f"{len(answer.scores)} scores and {len(causes)} causes for {len(samples)} samples"
            return [f"the answer has {lengths}"] * len(samples)
        return [_score_or_cause(score, cause) for score, cause in zip(answer.scores, causes, strict=True)]


def sample_key(model: str, sample: Mapping[str, str], pictures: Sequence[str]) -> bytes:
    """Cache key of the score of a sample.

    Depends on: the name and version of the scorer (``model``), all texts of the sample that are sent, and the digests
    of its ``pictures``, in order. The address is excluded, because the name identifies a scorer everywhere.
    """
    return query_key(model, "http", json.dumps(sample, sort_keys=True), *pictures)


def _score_or_cause(score: float | None, cause: str | None) -> float | str:
    if score is None:
        return one_line(cause or NO_SCORE)  # causes are counted by their text
    return float(score) if abs(score) <= ANY_NUMBER[1] else one_line(f"the score is {score}")


def build(term: RewardTerm, sources: Sources) -> HttpReward:
    """Build the reward of a term."""
    scorer: HttpScorer = require_section("http", term)
    return HttpReward(scorer, ScoreCache(sources.root / SCORES, ANY_NUMBER))
