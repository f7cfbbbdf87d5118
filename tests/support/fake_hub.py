"""A model hub of this machine: repositories in folders, some gated, served as the hub's client asks for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """Repositories below ``folder`` as ``owner/name``.

    Attributes:
        gated: names that nobody may read.
        cut: file -> bytes of it that are sent before the connection ends, once.
    """

    folder: Path
    gated: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    address: str = ""
    requests: list[str] = field(default_factory=list)


def _files(repository: Path) -> list[Path]:
    return sorted(path for path in repository.rglob("*") if path.is_file())


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = unquote(self.path.partition("?")[0]).strip("/")
        self.hub.requests.append(f"{self.command} {path}")
        parts = path.removeprefix("api/models/").split("/")
        name, remaining = "/".join(parts[:2]), parts[2:]
        repository = self.hub.folder / name
        if name in self.hub.gated:
            return self._refuse(403, "GatedRepo", f"Access to model {name} is restricted.")
        if not repository.is_dir():
            return self._refuse(404, "RepoNotFound", "Repository not found")
        if path.startswith("api/models/"):
            return self._listing(name, repository, remaining)
        file = repository / "/".join(remaining[2:])  # after resolve/<revision>
        if not file.is_file():
            return self._refuse(404, "EntryNotFound", "Entry not found")
        self._send(file, body)

    def _listing(self, name: str, repository: Path, parts: list[str]) -> None:
        files = _files(repository)
        if parts[:1] == ["tree"]:
            below = repository.joinpath(*parts[2:])
            if not below.is_dir():
                return self._refuse(404, "EntryNotFound", "Entry not found")
            files = _files(below)
            entries = [
                {"type": "file", "path": str(f.relative_to(repository)), "size": f.stat().st_size, "oid": _etag(f)}
                for f in files
            ]
            return self._json(entries)
        siblings = [{"rfilename": str(f.relative_to(repository))} for f in files]
        return self._json(
            {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
        )

    def _send(self, file: Path, body: bool) -> None:
        content, start = file.read_bytes(), 0
        if (byte_range := self.headers.get("Range", "")).startswith("bytes="):
            start = int(byte_range.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{_etag(file)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if body:
            limit = self.hub.cut.pop(file.name, None)
            self.wfile.write(content[start:] if limit is None else content[start : start + limit])
            if limit is not None:
                self.close_connection = True
                self.connection.close()

    def _json(self, tree: object) -> None:
        content = json.dumps(tree).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()


@contextmanager
def fake_hub(folder: Path) -> Iterator[FakeHub]:
    """Serve the repositories below ``folder`` on a free port of this machine."""
    hub = FakeHub(folder)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
