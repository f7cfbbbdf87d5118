"""Ways to a server that only strangers' servers need: proxies, redirects, errors in other shapes."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from paco_core.io import http_client
from paco_core.io.files import DataError
from paco_core.io.http_client import HttpClient, Patience, RequestFailed
from tests.support.loopback import Loopback, Quiet, Repeating

ONCE = Patience(retries=0)


class Proxy(Loopback):
    """Answers what goes through it by itself, and refuses tunnels; keeps the request lines and credentials."""

    def __init__(self) -> None:
        requests = self.requests = list[tuple[str, str, str | None]]()

        class Handler(Quiet):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                requests.append((self.command, self.path, self.headers["Proxy-Authorization"]))
                self.reply(200, b'{"by": "proxy"}')

            def do_CONNECT(self) -> None:
                requests.append((self.command, self.path, self.headers["Proxy-Authorization"]))
                self.reply(403, b"")

        super().__init__(Handler)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def post_chat(url: str, **settings: Any) -> dict[str, Any]:
    return HttpClient(url, 5, ONCE, **settings).call("POST", "/chat", b"{}")


def test_a_proxy_of_the_environment_is_used_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("://", "://me:p%40ss@"))
        assert post_chat("http://chat.invalid:81/v1", through_proxy=True) == {"by": "proxy"}
        assert proxy.requests == [("POST", "http://chat.invalid:81/v1/chat", "Basic bWU6cEBzcw==")]
        with pytest.raises(RequestFailed) as direct:
            post_chat("http://chat.invalid:81/v1")
        monkeypatch.setenv("no_proxy", "other.invalid,chat.invalid")
        with pytest.raises(RequestFailed) as error_info:
            post_chat("http://chat.invalid:81/v1", through_proxy=True)
        assert direct.value.kind == error_info.value.kind == "connection" and len(proxy.requests) == 1
        with Proxy() as server:  # on this machine
            assert post_chat(server.url, through_proxy=True) == {"by": "proxy"}
            assert server.requests == [("POST", "/chat", None)] and len(proxy.requests) == 1


def test_tls_goes_through_a_tunnel_and_no_secret_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://me:secret@"))
        with pytest.raises(RequestFailed, match="403") as error_info:
            post_chat("https://chat.invalid/v1", through_proxy=True)
        assert proxy.requests == [("CONNECT", "chat.invalid:443", "Basic bWU6c2VjcmV0")]
    monkeypatch.setenv("all_proxy", "socks5://me:secret@gate.invalid:1080")
    with pytest.raises(DataError, match="all_proxy") as of_another_kind:
        post_chat("http://chat.invalid/v1", through_proxy=True)
    with pytest.raises(DataError, match="API key") as not_printable:
        post_chat("http://chat.invalid/v1", api_key="sk-secret\n")
    assert not [error for error in (error_info, of_another_kind, not_printable) if "secret" in str(error.value)]


class Failing(Quiet):
    """Answers with a status, headers and a body, in which KEY stands for the key of the request."""

    status, headers_sent, body = 400, dict[str, str](), b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        self.reply(self.status, self.body.replace(b"KEY", key), self.headers_sent)


@pytest.mark.parametrize(
    ("status", "headers", "body", "cause"),
    [
        (308, {"Location": "https://chat.invalid/v1"}, b"", "HTTP 308: it redirects to https://chat.invalid/v1; give"),
        (422, {}, b'{"detail": "no such model"}', "HTTP 422: no such model"),
        (400, {}, b'{"object": "error", "message": "too long"}', "HTTP 400: too long"),
        (400, {}, b'{"error": {"message": "too long"}}', "HTTP 400: too long"),
        (400, {}, b'{"detail": [{"loc": ["body"]}]}', "HTTP 400"),
        (400, {}, b"[1]", "HTTP 400"),
        (400, {}, b'{"error": "' + b"x" * 285 + b'KEY"}', f"HTTP 400: {'x' * 285}***"),  # hidden before it is cut
    ],
)
def test_what_an_error_says_is_in_the_cause(status: int, headers: dict[str, str], body: bytes, cause: str) -> None:
    handler = type("Handler", (Failing,), {"status": status, "headers_sent": headers, "body": body})
    with Loopback(handler) as server, pytest.raises(RequestFailed) as raised:
        post_chat(server.url, api_key="sk-secret")
    assert raised.value.cause.startswith(cause) and raised.value.status == status and "sk" not in raised.value.cause


@pytest.mark.parametrize("at_once", [True, False])
def test_a_repeated_answer_is_not_the_answer_to_the_next_request(at_once: bool) -> None:
    with Loopback(type("Handler", (Repeating,), {"at_once": at_once})) as server:
        client = HttpClient(server.url, 5, ONCE)
        answers = [client.call("POST", "/", json.dumps({"n": n}).encode()) for n in range(4)]
    assert answers == [{"n": n} for n in range(4)]


def test_a_date_is_waited_for() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=20))
    assert 15 < http_client._seconds(soon) <= 20
    past, zoneless = "Wed, 21 Oct 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:00"
    assert [http_client._seconds(text) for text in (past, zoneless, "soon", "", None)] == [0.0] * 5
