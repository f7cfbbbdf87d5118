"""How the servers of this project answer: JSON, and errors in OpenAI's shape."""

from __future__ import annotations

import json
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from paco_core.serving.protocol import RequestError


def as_json(value: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(json.dumps(value), status, media_type="application/json")


def answer_errors(app: FastAPI) -> None:
    """Turn refusals, and what the framework refuses by itself, into answers in OpenAI's shape."""

    @app.exception_handler(HTTPException)
    async def http_error(_request: Request, error: HTTPException) -> Response:
        return as_json(RequestError(error.status_code, str(error.detail)).body(), error.status_code)

    @app.exception_handler(RequestError)
    async def refusal(_request: Request, error: RequestError) -> Response:
        return as_json(error.body(), error.status)
