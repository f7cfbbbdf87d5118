"""One rule for all servers: which requests were sent to them by name, and by their own pages."""

from __future__ import annotations

import pytest

from paco_core.io.local_server import hostname, is_own_page


@pytest.mark.parametrize(
    ("host", "name"),
    [("LocalHost:3000", "localhost"), ("[::1]:80", "::1"), ("evil.example", "evil.example")]
    + [(host, "") for host in ("", "a:b", "user@localhost", "localhost/path", "[::1")],
)
def test_a_host_header_names_a_server_or_nothing(host: str, name: str) -> None:
    assert hostname(host) == name


def test_a_page_of_the_server_is_known_whatever_its_scheme_and_other_pages_are_not() -> None:
    assert is_own_page("http://h:3000", "h:3000") and is_own_page("https://H:3000", "h:3000")
    assert is_own_page("http://h", "h:80") and is_own_page("https://h:443", "h")
    foreign_origins = (
        "null",
        "http://evil.example:3000",
        "http://h:3001",
        "http://h",
        "ftp://h:3000",
        "http://[",
        "h:3000",
    )
    assert not [origin for origin in foreign_origins if is_own_page(origin, "h:3000")]
    # Where no proxy can stand, a page by https is another server's.
    assert is_own_page("http://h:3000", "h:3000", tls=False) and not is_own_page("https://h:3000", "h:3000", tls=False)
