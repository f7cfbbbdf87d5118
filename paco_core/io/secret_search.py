"""Bytes that are to be published, looked through for secrets: the shapes of tokens, passwords, and this user's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from paco_core.io.secret_shapes import assigned, tokens
from paco_core.io.secrets import values_of

CHUNK = 4 << 20  # bytes that are held at a time
OVERLAP = 16 << 10  # bytes of the last chunk that are looked at again: a secret may lie across
_TEXT = re.compile(rb"[\t\r\n -~]{12,}")  # pictures and numbers hold hardly any that is as long
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_ESCAPE = re.compile(rb"\\(?:u00([0-7][0-9a-fA-F])|([^u]))")  # of JSON


def pieces_of(path: Path) -> Iterator[bytes]:
    """A file, a chunk at a time."""
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK):
            yield piece


class Search:
    """Looks for secrets in streams of bytes.

    Args:
        environ: variables whose values must not be published either: those that :func:`.secrets.values_of` names.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        forms = [(name, form) for name, value in values_of(environ) for form in (value, quote(value, safe=""))]
        self._own = [(name, form.encode()) for name, form in dict.fromkeys(forms)]
        self._overlap = max([OVERLAP, *(4 * len(form) for _, form in self._own)])

    def found(self, pieces: Iterable[bytes]) -> dict[str, int]:
        """What kinds of secret a stream holds, and the line where the first of each is. No secret is repeated here.

        A text is found in ASCII, UTF-8, UTF-16 and UTF-32, and behind the escapes of JSON.
        """
        found: dict[str, int] = {}
        kept, line = b"", 1
        for piece in pieces:
            window = kept + piece
            # What the cut left of a word is no start of one.
            body = window.lstrip(_LETTERS) if kept else window
            first = line + window.count(b"\n", 0, len(window) - len(body))
            for kind, at in self._places(body):
                found.setdefault(kind, first + body.count(b"\n", 0, at))
            kept = window[-self._overlap :]
            line += window.count(b"\n", 0, len(window) - len(kept))
        return found

    def _places(self, body: bytes) -> Iterator[tuple[str, int]]:
        yield from self._seen(body)
        for plain in (body.replace(b"\0", b""), _ESCAPE.sub(_unescaped, body)):
            if len(plain) != len(body):
                yield from ((kind, 0) for kind, _ in self._seen(plain))

    def _seen(self, body: bytes) -> Iterator[tuple[str, int]]:
        for name, value in self._own:
            if (at := body.find(value)) >= 0:
                yield f"the value of the variable {name}", at
        runs = list(_TEXT.finditer(body))
        text = "\0".join(run.group().decode("ascii") for run in runs)
        for shape, at, _end in (*tokens(text), *assigned(text.lower())):
            yield shape.kind, _place(runs, at)


def _place(runs: Sequence[re.Match[bytes]], at: int) -> int:
    """Where in the bytes a place of their joined texts is."""
    for run in runs:
        if at <= len(run.group()):
            return run.start() + at
        at -= len(run.group()) + 1
    raise ValueError(at)


def _unescaped(escape: re.Match[bytes]) -> bytes:
    if escape[1]:
        return bytes([int(escape[1], 16)])
    return b" " if escape[2] in b"bfnrt" else escape[2]
