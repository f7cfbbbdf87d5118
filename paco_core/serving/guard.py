"""What every server of ours asks of a request before it looks at it: the right key, and a bounded size."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from paco_core.serving.protocol import RequestError

if TYPE_CHECKING:
    from fastapi import Request

MAX_BODY = 24 << 20  # bytes: two pictures of a few megapixels, as base64


def authorise(request: Request, key: str | None) -> None:
    """Let a request pass that carries the key; any, where there is no key.

    Raises:
        RequestError: 401. The comparison takes the same time however much of the key is right.
    """
    if key is None:
        return
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), key.encode()):
        raise RequestError(401, "wrong or missing API key", "invalid_api_key")


async def read_body(request: Request) -> bytes:
    """The request's body.

    Raises:
        RequestError: 413 as soon as it is known to exceed :data:`MAX_BODY`; the rest is not read.
    """
    limit = RequestError(413, f"request body exceeds {MAX_BODY} bytes", "body_too_large")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_BODY:
        raise limit
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY:
            raise limit
        chunks.append(chunk)
    return b"".join(chunks)
