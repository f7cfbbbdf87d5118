"""Whether a request was sent to a server by one of its names, and by a page of its own.

A page of the web that is open in a browser on this machine can send requests to a server here. By a name of its own
that it has led to this machine (DNS rebinding) it could read the answers: then ``Host`` is no name of the server.
Without being asked for leave it can send a form or a text: then ``Origin`` is another one than ``Host``.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

_PORTS = {"http": 80, "https": 443}


def hostname(host: str) -> str:
    """The name in a ``Host`` header, in small letters and without its port; empty where there is none.

    Ports are not compared with the server's own: behind ``ssh -L`` or a proxy it is another one.
    """
    found = _authority(f"//{host}")
    return (found.hostname or "") if found is not None else ""


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
        found = urlsplit(url)
        _ = found.port
    except ValueError:
        return None
    return found if found.hostname and not (found.path or found.query or found.username is not None) else None
