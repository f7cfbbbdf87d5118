"""Bytes that are to be published, looked through for secrets: the shapes of tokens, passwords, and this user's own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from paco_core.io.secret_shapes import assigned, tokens
from paco_core.io.secrets import values_of

CHUNK = 4 << 20  # bytes that are held at a time
OVERLAP = 16 << 10  # bytes of the last chunk that are looked at again: a secret may lie across
_TEXT = re.compile(rb"[\t\r\n -~]{12,}")  # pictures and numbers hold hardly any that is as long
_WIDE = re.compile(rb"(?:[\t\r\n -~]\0{1,3}){12,}[\t\r\n -~]?")
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_ESCAPE = re.compile(rb"\\(?:u00([0-7][0-9a-fA-F])|([^u]))")  # of JSON


def pieces_of(path: Path) -> Iterator[bytes]:
    """A file, a chunk at a time."""
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK):
            yield piece


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of :data:`CHUNK` or more: each search reads the end of the last block again."""
    block, size = list[bytes](), 0
    for piece in pieces:
        block.append(piece)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(block)
            block, size = [], 0
    yield b"".join(block)


class Search:
    """Looks for secrets in streams of bytes.

    Args:
        environ: variables whose values must not be published either: those that :func:`.secrets.values_of` names.
        names: further variables that hold a key.
    """

    def __init__(self, environ: Mapping[str, str], names: Collection[str] = ()) -> None:
        forms = [(name, form) for name, value in values_of(environ, names) for form in (value, quote(value, safe=""))]
        self._own = [(f"the value of the variable {name}", form.encode()) for name, form in dict.fromkeys(forms)]
        self._overlap = max([OVERLAP, *(4 * len(form) for _, form in self._own)])

    def found(self, pieces: Iterable[bytes]) -> dict[str, int]:
        """What kinds of secret a stream holds, and the line where the first of each is. No secret is repeated here.

        A text is found in ASCII, UTF-8, UTF-16 and UTF-32, and behind the escapes of JSON and the quotes of CSV.
        """
        found: dict[str, int] = {}
        kept, line = b"", 1
        for piece in _blocks(pieces):
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
        runs = list(_TEXT.finditer(body))
        text = b"\0".join(run.group() for run in runs)
        yield from ((kind, at) for kind, value in self._own if (at := body.find(value)) >= 0)
        yield from ((kind, _place(runs, at)) for kind, at in _shapes(text))
        for plain in {_narrow(body) if b"\0" in body else text, *_unquoted(text)} - {text}:
            yield from ((kind, 0) for kind, value in self._own if value in plain)
            yield from ((kind, 0) for kind, _ in _shapes(plain))


def _shapes(text: bytes) -> Iterator[tuple[str, int]]:
    """What in a text has the shape of a secret, and where."""
    words = text.decode("ascii")
    yield from ((shape.kind, at) for shape, at, _end in (*tokens(words), *assigned(words.lower())))


def _place(runs: Sequence[re.Match[bytes]], at: int) -> int:
    """Where in the bytes a place of their joined texts is."""
    for run in runs:
        if at <= len(run.group()):
            return run.start() + at
        at -= len(run.group()) + 1
    raise ValueError(at)


def _narrow(body: bytes) -> bytes:
    """Texts in UTF-16 and UTF-32 as ASCII, also without a letter before or behind that is none of theirs."""
    texts = [match[0].replace(b"\0", b"") for match in _WIDE.finditer(body)]
    return b"\0".join(part for text in texts for part in (text, text[1:], text[:-1]))


def _unquoted(text: bytes) -> Iterator[bytes]:
    """A text without the escapes of JSON and the doubled quotes of CSV, one in the other up to three times."""
    for _ in range(3):
        yield (text := _ESCAPE.sub(_unescaped, text))
        yield (text := text.replace(b'""', b'"'))


def _unescaped(escape: re.Match[bytes]) -> bytes:
    if escape[1]:
        return bytes([int(escape[1], 16)])
    return b" " if escape[2] in b"bfnrt" else escape[2]
