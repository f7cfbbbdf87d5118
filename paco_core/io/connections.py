"""Uvicorn with the settings of all our servers.

A client that sends slowly can keep a connection open: put a proxy in front of a server before you expose it.
"""

from __future__ import annotations

import socket
from typing import Any

import uvicorn

IDLE_S = 75.0  # between two requests


def serve(app: Any, bound: socket.socket, *, websockets: bool = False, grace_s: int = 2) -> None:
    """Serve an ASGI application on a listening socket until Ctrl-C or SIGTERM.

    Args:
        websockets: whether a request may turn its connection into one, which has no limit of time.
        grace_s: seconds in which requests under way may end.
    """
    config = uvicorn.Config(
        app,
        ws="auto" if websockets else "none",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=grace_s,
    )
    uvicorn.Server(config).run(sockets=[bound])
