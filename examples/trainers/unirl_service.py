"""The consistency of a served judge as a reward service of UniRL.

    python examples/trainers/unirl_service.py --judge http://127.0.0.1:PORT

UniRL's ``RemoteRewardBackend`` asks ``GET /health`` which rewards there are, and posts to ``/score``
``{"requests": [{"history": [{"text", "image_b64"}], "required_rewards": [...], "metadata": {...}}]}``. The picture is
that of the last turn; ``metadata`` must hold ``layout`` and ``theme``, which UniRL forwards from its prompts. Each
request gets ``results[i] = {"paco_consistency": {"consistency": 0.71}}``, or ``errors[i]["paco_consistency"]`` with our
cause, which UniRL takes as a failed sample.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, Field, ValidationError
from scorer_service import Answer, arguments, run

from paco_core import Judge
from paco_core.io.files import DataError
from paco_core.io.validation import first_validation_error
from paco_core.reward_model.yes_probability import Score

REWARD = "paco_consistency"
AT_A_TIME = 16  # samples


class Turn(BaseModel):
    """A text and its image."""

    text: str
    image_b64: str | None = None


class Metadata(BaseModel):
    """Required metadata of a prompt."""

    layout: str
    theme: str


class Sample(BaseModel):
    """One sample to be scored."""

    history: list[Turn] = Field(min_length=1)
    required_rewards: list[str] = Field(min_length=1)
    metadata: dict[str, Any] | None = None

    def grid(self) -> tuple[bytes, Metadata]:
        """The encoded image, and its layout and theme.

        Raises:
            DataError: if one of them is missing.
        """
        try:
            metadata = Metadata.model_validate(self.metadata or {})
            return base64.b64decode(self.history[-1].image_b64 or "", validate=True), metadata
        except ValidationError as error:
            raise DataError(f"metadata.{first_validation_error(error)}; it needs layout and theme") from None
        except binascii.Error as error:
            raise DataError(f"image_b64 is not base64 ({error})") from None


class Request(BaseModel):
    """The request of UniRL."""

    requests: list[Sample]


def answerer(judge: Judge) -> Answer:
    """Answers requests in UniRL's format. A sample that cannot be scored does not affect other samples."""

    def score_sample(sample: Sample) -> Score:
        try:
            picture, metadata = sample.grid()
            return judge.grid_scores([picture], [metadata.layout], themes=[metadata.theme])[0]
        except DataError as error:
            return Score(math.nan, str(error))

    def score(body: bytes) -> dict[str, Any]:
        request = Request.model_validate_json(body)
        unknown = {name for sample in request.requests for name in sample.required_rewards} - {REWARD}
        if unknown:
            raise DataError(f"unknown reward: {', '.join(sorted(unknown))}. available: {[REWARD]}")
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            scores = list(pool.map(score_sample, request.requests))
        return {
            "results": [{} if s.failed else {REWARD: {"consistency": s.value}} for s in scores],
            "errors": [{REWARD: str(s.cause)} if s.failed else {} for s in scores],
        }

    def answer(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
        if (method, path) == ("GET", "/health"):
            return _json(200, {"status": "ok", "rewards": {REWARD: [True]}})
        if (method, path) == ("GET", "/rewards"):
            return _json(200, {"rewards": [REWARD]})
        if (method, path) != ("POST", "/score"):
            return _json(404, {"detail": f"{method} {path}: there are /health, /rewards and /score"})
        try:
            return _json(200, score(body))
        except ValidationError as error:
            return _json(422, {"detail": first_validation_error(error)})
        except DataError as error:
            return _json(400, {"detail": str(error)})

    return answer


def _json(status: int, value: Any) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(value).encode()


if __name__ == "__main__":
    run(answerer, arguments("Consistency as a reward service of UniRL.", 8080).parse_args())
