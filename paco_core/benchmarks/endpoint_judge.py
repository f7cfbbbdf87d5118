"""Any model behind an OpenAI-compatible endpoint as a judge, read from the log-probabilities of its first token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from paco_core.data.llm.chat_connection import Endpoint, NoAnswer
from paco_core.data.llm.chat_protocol import picture_part
from paco_core.reward_model.yes_probability import TOP, Query, Score, Unscorable, from_top_logprobs

if TYPE_CHECKING:
    from paco_core.config.params import ChatParams


class _Token(BaseModel):
    top_logprobs: list[dict[str, Any]]


class _Logprobs(BaseModel):
    content: list[_Token] | None = None


class _Choice(BaseModel):
    logprobs: _Logprobs | None = None


class _Answer(BaseModel):
    choices: list[_Choice] = Field(min_length=1)


class EndpointJudge:
    """P(Yes) against P(No) among the 20 most probable first tokens, " Yes" and "yes" counted with "Yes".

    Raises:
        ChatError: when the environment variable that should hold the key is empty; while asking, when the endpoint
            refuses the key or the model, or serves nothing any more.
    """

    def __init__(self, params: ChatParams) -> None:
        self.params, self._endpoint = params, Endpoint(params)

    def score(self, queries: Sequence[Query]) -> list[Score]:
        """One score a query, in order; NaN with a cause where none could be had."""
        return self._endpoint.each(queries, self._score)

    def _score(self, query: Query) -> Score:
        parts = [*map(picture_part, query.pictures), {"type": "text", "text": query.instruction}]
        body = {
            "model": self.params.model,
            "messages": [{"role": "user", "content": parts}],
            "max_completion_tokens": 1,
            "logprobs": True,
            "top_logprobs": TOP,
        }
        try:
            logprobs = self._endpoint.complete(body, _Answer).choices[0].logprobs
        except NoAnswer as error:
            return Score(math.nan, error.rejection.cause)
        if logprobs is None or not logprobs.content:
            return Score(math.nan, "the answer lacks log-probabilities")
        try:
            return Score(from_top_logprobs(logprobs.content[0].top_logprobs, variants=True))
        except Unscorable as error:
            return Score(math.nan, str(error))
