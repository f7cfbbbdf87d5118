"""The ``openai`` client with one limit of time for each try of a request.

The limit that it is given is one for each single read: an endpoint that sends a byte now and then is never late.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    import openai

    from paco_core.config.params import ChatParams


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
