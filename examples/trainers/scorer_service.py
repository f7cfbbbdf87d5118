"""Shared code of the two scorer services: a small HTTP server, and the records of prompts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from paco_core import Judge
from paco_core.data.records.prompt_content import records_by_text
from paco_core.data.records.records import PromptRecord, read_prompts
from paco_core.io.files import DataError

MAX_BODY = 128 << 20  # bytes; larger requests are refused before they are read
IDLE_S = 60.0  # a connection on which nothing arrives is closed

#: Method, path and body of a request -> status, content type and body of the answer.
Answer = Callable[[str, str, bytes], tuple[int, str, bytes]]


def by_prompt(path: Path) -> dict[str, PromptRecord]:
    """The records of a T2IS file by the text of their prompt, because some trainers send only the text.

    Raises:
        DataError: with file and both ids, if two records have equal texts and differ in other keys.
    """
    try:
        return records_by_text(read_prompts(path))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def find_record(records: dict[str, PromptRecord], prompt: str) -> PromptRecord:
    """The record of a prompt.

    Raises:
        DataError: if the file does not contain the prompt.
    """
    if prompt not in records:
        raise DataError(f"prompt {prompt[:60]!r}... is not in the file of prompts, which contains its layout and theme")
    return records[prompt]


def server(answer: Answer, port: int) -> ThreadingHTTPServer:
    """A server on 127.0.0.1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = IDLE_S

        def do_GET(self) -> None:
            self._reply(*answer("GET", self.path, b""))

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length", "")
            if not length.isascii() or not length.isdigit() or int(length) > MAX_BODY:
                self.close_connection = True  # the body stays unread
                self._reply(413, "text/plain", f"expected Content-Length, at most {MAX_BODY}".encode())
                return
            self._reply(*answer("POST", self.path, self.rfile.read(int(length))))

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

        def _reply(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def arguments(description: str, port: int) -> argparse.ArgumentParser:
    """The options of both services."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--judge", required=True, type=_address, help="address of `paco serve up`")
    parser.add_argument("--port", type=int, default=port)
    return parser


def _address(judge: str) -> str:
    if not judge.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{judge!r} is not the address of a server; start one with `paco serve up`")
    return judge


def run(answer: Callable[[Judge], Answer], options: argparse.Namespace) -> None:
    """Serve until Ctrl-C."""
    with Judge(options.judge) as judge, server(answer(judge), options.port) as listening:
        print(f"http://127.0.0.1:{listening.server_address[1]}", flush=True)
        listening.serve_forever()
