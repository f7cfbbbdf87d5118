"""Any model behind an OpenAI-compatible endpoint as a judge, read from the log-probabilities of its first token."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from paco_core.data.llm.chat_connection import ChatError, Endpoint, NoAnswer
from paco_core.data.llm.chat_protocol import picture_part
from paco_core.reward_model.yes_probability import TOP, Query, Score, Unscorable, from_top_logprobs

if TYPE_CHECKING:
    from paco_core.config.params import ChatParams

GIVE_UP_AFTER = 8  # questions in a row that were not served


class _Token(BaseModel):
    top_logprobs: list[dict[str, Any]]


class _Logprobs(BaseModel):
    content: list[_Token] = Field(min_length=1)


class _Choice(BaseModel):
    logprobs: _Logprobs


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
        self._unserved = 0

    def score(self, queries: Sequence[Query]) -> list[Score]:
        """One score a query, in order; NaN with a cause where none could be had."""
        try:
            return asyncio.run(self._score_all(queries))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _score_all(self, queries: Sequence[Query]) -> list[Score]:
        slots = asyncio.Semaphore(self.params.in_flight)

        async def one(query: Query) -> Score:
            async with slots:
                return await self._score(query)

        async with self._endpoint, asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(query)) for query in queries]
        return [task.result() for task in tasks]

    async def _score(self, query: Query) -> Score:
        parts = [await picture_part(picture) for picture in query.pictures]
        parts.append({"type": "text", "text": query.instruction})
        body = {
            "model": self.params.model,
            "messages": [{"role": "user", "content": parts}],
            "max_completion_tokens": 1,
            "logprobs": True,
            "top_logprobs": TOP,
        }
        try:
            answer = _Answer.model_validate_json(await self._endpoint.complete(body))
            self._unserved = 0
            return Score(from_top_logprobs(answer.choices[0].logprobs.content[0].top_logprobs, variants=True))
        except NoAnswer as error:
            self._unserved += 1
            if self._unserved >= max(GIVE_UP_AFTER, self.params.in_flight):
                raise ChatError(
                    f"{self._endpoint.name}: {self._unserved} questions in a row failed, the last with "
                    f"{error.rejection}; the scores of earlier sets are kept: run again to resume from there"
                ) from None
            return Score(math.nan, error.rejection.cause)
        except ValidationError:
            return Score(math.nan, "the answer lacks log-probabilities")
        except Unscorable as error:
            return Score(math.nan, str(error))
