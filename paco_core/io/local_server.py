"""Local servers: Uvicorn with one set of limits, and who may send a request to it.

A client that sends slowly can keep a connection open: put a proxy in front of a server before you expose it.

A page of the web that is open in a browser on this machine can send requests to a server here. If the page's own host
name leads to this machine (DNS rebinding), it could read the answers: then ``Host`` is no name of the server. A page
can also send a form or a text without permission: then ``Origin`` is not ``Host``.
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
    import uvicorn  # late: what scores does without it

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
    """The name in a ``Host`` header, in small letters and without its port; empty where there is none.

    Ports are not compared with the server's own: behind ``ssh -L`` or a proxy it is another one.
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
    """None for what is no host and port: ``null``, a path, a user's name, a bad port."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    return parts if parts.hostname and not (parts.path or parts.query or parts.username is not None) else None


def has_display() -> bool:
    """Whether a browser can open a window here. If not, a browser of the terminal could take the terminal over."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
