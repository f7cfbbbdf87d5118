"""Pictures that lie elsewhere: nowhere, unless ``execution.serving.allowed_media`` lists the place."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from paco_core.serving.guard import MAX_BODY
from paco_core.serving.protocol import RequestError

FETCH_S = 10.0


class Media:
    """Reads pictures from listed places only.

    Args:
        allowed: beginnings of addresses, each a folder: ``file:///pictures/``, ``https://host/pictures/``.
    """

    def __init__(self, allowed: Sequence[str] = ()) -> None:
        places = [urlsplit(place) for place in allowed]
        self.folders = [Path(unquote(place.path)).resolve() for place in places if place.scheme == "file"]
        self.sites = [place for place in places if place.scheme in ("http", "https")]

    def check(self, url: str) -> None:
        """Let an address pass whose place is listed.

        Raises:
            RequestError: 400.
        """
        parts = urlsplit(url)
        if parts.scheme == "file":
            path = Path(unquote(parts.path)).resolve()  # links and ".." lead out of no folder
            listed = any(path.is_relative_to(folder) for folder in self.folders)
        else:
            listed = any(_within(parts, site) for site in self.sites)
        if not listed:
            text = "expected data:image/...;base64,...; other places must be listed in execution.serving.allowed_media"
            raise RequestError(400, f"image_url.url {url[:80]!r}: {text}", "image_url")

    def read(self, url: str) -> bytes:
        """The bytes at an address.

        Raises:
            RequestError: 400 when its place is not listed, or nothing of a bearable size can be had there.
        """
        self.check(url)
        parts = urlsplit(url)
        return _read_file(Path(unquote(parts.path))) if parts.scheme == "file" else _fetch(url)


def _within(parts: SplitResult, site: SplitResult) -> bool:
    path = posixpath.normpath(unquote(parts.path) or "/")
    folder = site.path.rstrip("/") + "/"
    return (parts.scheme, parts.netloc) == (site.scheme, site.netloc) and path.startswith(folder)


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BODY + 1)
    except OSError as error:
        raise RequestError(400, f"{path}: cannot be read ({error.strerror})", "image_url") from None
    return _bounded(data, str(path))


def _fetch(url: str) -> bytes:
    import httpx

    data = b""
    try:  # no redirects: they lead out of the list
        with httpx.stream("GET", url, timeout=FETCH_S, follow_redirects=False, trust_env=False) as answer:
            if answer.status_code != httpx.codes.OK:
                raise RequestError(400, f"{url[:80]} answers {answer.status_code}", "image_url")
            for chunk in answer.iter_bytes():
                data += chunk
                if len(data) > MAX_BODY:
                    break
    except httpx.HTTPError as error:
        raise RequestError(400, f"{url[:80]} does not answer ({type(error).__name__})", "image_url") from None
    return _bounded(data, url[:80])


def _bounded(data: bytes, name: str) -> bytes:
    if len(data) > MAX_BODY:
        raise RequestError(400, f"{name} exceeds {MAX_BODY} bytes", "image_too_large")
    return data
