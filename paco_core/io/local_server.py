"""Local servers: Uvicorn with one set of limits, and protection against requests from other sites.

A client that sends slowly can keep a connection open: put a proxy in front of a server before you expose it.

A web page in a browser on this machine can send requests to a local server. With DNS rebinding, the page could read the
answers; then ``Host`` is not a name of the server. A page can also send a form without permission; then ``Origin``
differs from ``Host``.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from typing import Any
from urllib.parse import SplitResult, urlsplit

IDLE_S = 75.0  # between two requests


def run_server(app: Any, listener: socket.socket, *, websockets: bool = False, grace_s: int = 2) -> None:
    """Serve an ASGI application on a listening socket until Ctrl-C or SIGTERM.

    Args:
        websockets: whether a request may turn its connection into one, which has no limit of time.
        grace_s: seconds in which requests under way may end.
    """
    import uvicorn  # lazy: scoring does not need it

    config = uvicorn.Config(
        app,
        ws="auto" if websockets else "none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=grace_s,
    )
    uvicorn.Server(config).run(sockets=[listener])


_PORTS = {"http": 80, "https": 443}


def hostname(host: str) -> str:
    """The host name of a ``Host`` header, in lower case and without port; empty if there is none.

    The port is ignored, because ``ssh -L`` and proxies change it.
    """
    authority = _authority(f"//{host}")
    return (authority.hostname or "") if authority is not None else ""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_own_page(origin: str, host: str, *, tls: bool = True) -> bool:
    """Whether an ``Origin`` is the server that ``Host`` names.

    Args:
        tls: whether TLS may end before the server, in a proxy; without, a page by https is another server's.
    """
    page, server = _authority(origin), _authority(f"//{host}")
    if page is None or server is None or page.scheme not in (_PORTS if tls else ("http",)):
        return False
    port = _PORTS[page.scheme]
    return (page.hostname, page.port or port) == (server.hostname, server.port or port)


def _authority(url: str) -> SplitResult | None:
    """Host and port; None for anything else, for example ``null``, a path, a user name or an invalid port."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts if parts.hostname and not (parts.path or parts.query or parts.username is not None) else None


def has_display() -> bool:
    """Whether a browser can open a window. Without a window, a text browser could take over the terminal."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
