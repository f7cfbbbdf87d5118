"""No page of another site can use a server on this machine: neither under a name of its own, nor without asking."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from paco_core.serving.engines.transformers_app import build_app
from paco_core.serving.servers.gateway import Gateway
from paco_core.serving.servers.gateway import build_app as build_gateway
from tests.support.serving_fakes import FakeModel, fake_server, listening, served
from tests.unit.serving.test_app import GOOD, JSON, NAME, request

MODEL = FakeModel()


@pytest.fixture(scope="module")
def both() -> Iterator[dict[str, str]]:
    """A server, and a gateway before it."""
    with (
        served(MODEL) as (url, _),
        listening(build_gateway(Gateway(lambda: {NAME: url}, timeout_s=60))) as gateway,
    ):
        yield {"server": url, "gateway": gateway}


def send(
    url: str, method: str = "POST", path: str = "/v1/chat/completions", **headers: str
) -> tuple[int, dict[str, Any] | str]:
    """``Host`` and the type of the body are right unless ``headers`` say otherwise (an empty one is not sent)."""
    address = url.removeprefix("http://")
    given = {
        "Host": address,
        **(JSON if method == "POST" else {}),
        **{k.replace("_", "-"): v for k, v in headers.items()},
    }
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.putrequest(method, path, skip_host=True)
    body = json.dumps(request([GOOD, GOOD])).encode() if method == "POST" else b""
    for name, value in given.items():
        if value:
            connection.putheader(name, value)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, json.loads(text) if text.startswith("{") else text


REFUSED: list[tuple[dict[str, str], int, str]] = [
    ({"Host": "evil.example:8000"}, 403, "host"),  # DNS rebinding
    ({"Host": "localhost.evil.example"}, 403, "host"),
    ({"Host": "127.0.0.1@evil.example"}, 403, "host"),
    ({"Host": "[::1"}, 403, "host"),
    ({"Host": ""}, 403, "host"),
    ({"Origin": "https://evil.example"}, 403, "origin"),
    ({"Origin": "null"}, 403, "origin"),  # a sandboxed frame, a file
    ({"Origin": "http://127.0.0.1:1"}, 403, "origin"),  # another server on this machine
    ({"Host": "evil.example", "Origin": "http://evil.example"}, 403, "host"),
    ({"Content_Type": "text/plain"}, 415, "content_type"),  # what a page may send without asking
    ({"Content_Type": "application/x-www-form-urlencoded"}, 415, "content_type"),
    ({"Content_Type": "multipart/form-data; boundary=application/json"}, 415, "content_type"),
    ({"Content_Type": ""}, 415, "content_type"),
]


@pytest.mark.parametrize("which", ["server", "gateway"])
@pytest.mark.parametrize(("headers", "status", "code"), REFUSED)
def test_what_a_page_of_another_site_can_send_is_refused(
    both: dict[str, str], which: str, headers: dict[str, str], status: int, code: str
) -> None:
    asked = len(MODEL.asks)
    got, answer = send(both[which], **headers)
    assert isinstance(answer, dict)
    assert (got, answer["error"]["code"]) == (status, code) and answer["error"]["message"]
    assert len(MODEL.asks) == asked


@pytest.mark.parametrize("which", ["server", "gateway"])
def test_what_our_own_programs_send_is_answered(both: dict[str, str], which: str) -> None:
    url = both[which]
    port = url.rpartition(":")[2]
    for host in (
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        f"LOCALHOST:{port}",
        "localhost",
        f"[::1]:{port}",
        "127.0.0.1:9000",
    ):
        assert send(url, Host=host)[0] == 200, host
    assert send(url, Content_Type="application/json; charset=utf-8")[0] == 200
    assert send(url, Host=f"localhost:{port}", Origin=f"http://localhost:{port}")[0] == 200  # a page of this server
    for path in ("/health", "/metrics", "/v1/models"):
        assert send(url, "GET", path)[0] == 200  # Prometheus and probes send no Origin and no body
        assert send(url, "GET", path, Host="evil.example")[0] == 403
        assert send(url, "GET", path, Origin="https://evil.example")[0] == 403
    _, metrics = send(url, "GET", "/metrics")
    assert isinstance(metrics, str) and 'refused_total{cause="host"}' in metrics


@pytest.mark.parametrize(
    ("listens", "host", "status"),
    [
        ("192.0.2.7", "192.0.2.7:8000", 200),
        ("Rewards.example", "rewards.example", 200),
        ("192.0.2.7", "localhost", 200),
        ("192.0.2.7", "evil.example", 403),
        ("0.0.0.0", "rewards.example:80", 200),  # it has names that it cannot know, and asks for a key
        ("::", "rewards.example:80", 200),
    ],
)
def test_the_name_that_a_server_was_given_is_its_own(listens: str, host: str, status: int) -> None:
    with listening(build_app(fake_server(FakeModel()), listens)) as url:
        assert send(url, "GET", "/health", Host=host)[0] == status
