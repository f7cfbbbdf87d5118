"""An OpenAI-compatible endpoint: its key, one request at a time, and what can go wrong with it.

What the endpoint did not serve (429, 5xx, no connection, no answer in time) is tried again by the ``openai`` client
with back-off, jitter and ``Retry-After``. The limit of time that the client is given is one for each single read: an
endpoint that sends a byte now and then is never late. Here it holds for each try, all in all.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import httpx

from paco_core.data.llm.chat_protocol import Rejection
from paco_core.io.files import DataError

if TYPE_CHECKING:
    import openai

    from paco_core.config.params import ChatParams

FATAL = {
    401: "is the key in {key} right?",
    403: "may the key in {key} use this model?",
    404: "does the endpoint serve this model, and does its base URL end where its documentation says (often /v1)?",
}


class ChatError(DataError):
    """The endpoint cannot be worked with; what it answered so far lies in the journal."""


class NoAnswer(Exception):
    """Nothing to judge came back; ``final`` when asking the same later would bring nothing either."""

    def __init__(self, cause: str, detail: str = "", *, final: bool = False) -> None:
        super().__init__(cause)
        self.rejection, self.final = Rejection(cause, detail), final


class Endpoint:
    """Use as ``async with endpoint:`` and :meth:`complete`; ``retries`` counts the client's tries beyond the first.

    Raises:
        ChatError: when the environment variable that should hold the key is empty.
    """

    def __init__(self, params: ChatParams) -> None:
        self.params, self.retries = params, 0
        self._secret = os.environ.get(params.api_key_env, "") if params.api_key_env else "none"
        if not self._secret:
            raise ChatError(f"{params.base_url}: the environment variable {params.api_key_env} holds no key")

    @property
    def name(self) -> str:
        return f"{self.params.base_url}, model {self.params.model}"

    async def complete(self, body: dict[str, Any]) -> bytes:
        """The chat completion, as JSON, that the endpoint answers a request's body with.

        Raises:
            NoAnswer: when it answers none.
            ChatError: when it refuses the key, or does not know the model.
        """
        import openai

        try:
            raw = await self._client.chat.completions.with_raw_response.create(**body, extra_body=self.params.options)
            self.retries += raw.retries_taken
            return raw.content
        except openai.APIStatusError as error:
            again = error.status_code in (408, 409, 429) or error.status_code >= 500
            self.retries += self.params.retries if again else 0
            detail = error.message.replace(self._secret, "***")[:300]
            if error.status_code in FATAL:
                hint = FATAL[error.status_code].format(key=self.params.api_key_env or "(no key is configured)")
                raise ChatError(f"{self.name}: HTTP {error.status_code}: {detail}; {hint}") from None
            raise NoAnswer(f"http_{error.status_code}", detail, final=not again) from None
        except openai.APITimeoutError:
            raise NoAnswer("no_answer_in_time", f"{self.params.timeout_s} s") from None
        except openai.APIConnectionError as error:
            raise NoAnswer("no_connection", f"{error.__cause__ or error}") from None

    async def __aenter__(self) -> Endpoint:
        self._client = connect(self.params, self._secret)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()


def connect(params: ChatParams, secret: str) -> openai.AsyncOpenAI:
    """A client of a chat endpoint; a try that takes longer than ``params.timeout_s``, all in all, is an
    ``openai.APITimeoutError``."""
    import openai

    class Timed(openai.DefaultAsyncHttpxClient):
        async def send(self, request: httpx.Request, **settings: Any) -> httpx.Response:
            try:
                async with asyncio.timeout(params.timeout_s):
                    return await super().send(request, **settings)
            except TimeoutError:
                raise httpx.ReadTimeout("no complete answer in time", request=request) from None

    return openai.AsyncOpenAI(
        base_url=params.base_url,
        api_key=secret,
        timeout=params.timeout_s,
        max_retries=params.retries,
        http_client=Timed(timeout=params.timeout_s),
    )
