"""A guard before Dagster's webserver.

The webserver asks nobody who they are. It looks neither at Host nor at Origin, allows GraphQL by GET and reads a query
from the address of any POST: a page of the web that is open in the browser of somebody who runs it can start runs (an
``<img>`` suffices), and, by a name of its own that it has lead to this machine (DNS rebinding), read the answers. The
guard lets through what the webserver's own pages and programs send. It is no log-in: who reaches the port is in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from dagster._core.workspace.context import IWorkspaceProcessContext
from dagster_webserver.app import create_app_from_workspace_process_context
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from paco_core.io.local_server import hostname, is_own_page

POLL_MILLISECONDS = 2000  # how often pages ask for what is new
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})  # no other machine can be lead here under these names
_SAFE = {"GET", "HEAD", "OPTIONS"}
_POLICY_VIOLATION = 1008  # RFC 6455, 7.4.1


@dataclass(frozen=True)
class Refusal:
    """Why a request does not reach the webserver."""

    status: int
    reason: str


class Guard:
    """ASGI middleware: refuses requests that another web page may have sent.

    ``hosts`` are the names under which people reach the webserver, besides those of this machine; any port, since a
    tunnel or a proxy may have another.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self.app, self.hosts = app, LOOPBACK | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = None if scope["type"] == "lifespan" else refusal(scope, self.hosts)
        if error is None:
            await self.app(scope, receive, _unframed(send))
        elif scope["type"] == "websocket":
            await WebSocketClose(_POLICY_VIOLATION, error.reason)(scope, receive, send)
        else:
            await PlainTextResponse(f"{error.reason}\n", error.status)(scope, receive, send)


def refusal(scope: Scope, hosts: Collection[str]) -> Refusal | None:
    """Why a request, or a websocket's first, is refused; None when it may pass."""
    headers = Headers(scope=scope)
    hosts_in_request = headers.getlist("host")
    if len(hosts_in_request) != 1 or hostname(hosts_in_request[0]) not in hosts:
        name = ", ".join(hosts_in_request) or "none"
        return Refusal(403, f"Host {name}: not a name of this server; allow it with --allow-host or PACO_DAGSTER_HOSTS")
    for origin in headers.getlist("origin"):
        if not is_own_page(origin, hosts_in_request[0]):
            return Refusal(
                403, f"Origin {origin} is not this server, {hosts_in_request[0]}: requests from other pages are refused"
            )
    if scope["type"] == "websocket":
        return None
    if scope["method"] not in _SAFE:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            return Refusal(415, f"Content-Type {kind or 'none'}: send application/json")
    elif _is_graphql(scope) and scope["query_string"] and "text/html" not in headers.get("accept", ""):
        return Refusal(405, "GraphQL by GET is refused: send it by POST as application/json")
    return None


def _is_graphql(scope: Scope) -> bool:
    """With whatever prefix; for a browser that wants HTML the webserver draws an editor and asks nothing."""
    return str(scope["path"]).rstrip("/").endswith("/graphql")


def _unframed(send: Send) -> Send:
    """No other page may show ours in a frame, where a click meant for it would press our buttons."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["X-Frame-Options"] = "SAMEORIGIN"
        await send(message)

    return sending


def guarded_app(context: IWorkspaceProcessContext[Any], hosts: Iterable[str] = (), prefix: str = "") -> Starlette:
    """The application of ``dagster-webserver`` with the guard as its outermost layer.

    In one process and not a proxy before it: nothing then listens that is not guarded.
    """
    app = create_app_from_workspace_process_context(context, prefix, POLL_MILLISECONDS)
    app.add_middleware(Guard, hosts=hosts)
    return app
