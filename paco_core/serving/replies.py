"""How the servers of this project answer: JSON, and errors in OpenAI's shape."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

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


def answer_errors(app: FastAPI) -> None:
    """Turn refusals, and what the framework refuses by itself, into answers in OpenAI's shape."""

    @app.exception_handler(HTTPException)
    async def http_error(_request: Request, error: HTTPException) -> Response:
        return refuse(RequestError(error.status_code, str(error.detail)))

    @app.exception_handler(RequestError)
    async def refusal(_request: Request, error: RequestError) -> Response:
        return refuse(error)
