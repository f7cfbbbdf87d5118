"""How the servers of this project answer: JSON, and errors in OpenAI's shape."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from paco_core.serving.protocol import RequestError


def as_json(value: Any, status: int = 200) -> Response:
    """A JSON answer.

    Raises:
        ValueError: for a number that JSON does not know (NaN, Infinity).
    """
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")


def refuse(error: RequestError) -> Response:
    """A refusal in OpenAI's shape, with ``Retry-After`` where trying again may help."""
    answer = as_json(error.body(), error.status)
    if error.retry_after_s is not None:
        answer.headers["Retry-After"] = str(error.retry_after_s)
    return answer


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refuse(RequestError(error.status_code, str(error.detail)))


async def _refusal(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return refuse(error)


#: For an application: refusals, and what Starlette refuses by itself, are answered in OpenAI's shape.
ERRORS = {HTTPException: _http_error, RequestError: _refusal}
