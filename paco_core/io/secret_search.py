"""Search for secrets in files before they are published.

A secret is a token by its shape (:mod:`.secret_shapes`), a match of a detector of detect-secrets (Yelp) or of
:data:`ASSIGNED`, or the value of an environment variable of this user. detect-secrets has no rule for headers and
`name: value`. No match is sent anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from paco_core.io.secret_shapes import tokens
from paco_core.io.secrets import values_of

CHUNK = 4 << 20  # bytes that are searched at a time
OVERLAP = 16 << 10  # bytes of the last chunk to search again, because a secret may cross chunks
#: Detectors with false positives (digests, base64 images, vocabularies), or that need a second per megabyte.
SKIPPED = {
    "ArtifactoryDetector", "Base64HighEntropyString", "CloudantDetector", "HexHighEntropyString", "IPPublicDetector",
    "IbmCloudIamDetector", "IbmCosHmacDetector", "NpmDetector", "SoftlayerDetector",
}  # fmt: skip
_MIXED = r"(?=[^\s\"']*[a-z])(?=[^\s\"']*\d)"  # letters and digits, unlike the words of a sentence
ASSIGNED = {
    "a password": rf"(?:password|passwd|passphrase)[\"']?:\s?{_MIXED}[^\s\"'`<>${{}}()\[\]|*,;:]{{6}}"
    r"|login\s{1,3}\S{1,80}\s{1,3}password\s{1,3}\S{4}",
    "a key": rf"(?:signature|credential|token)[\"']?\s{{0,3}}[:=]\s{{0,3}}[\"']?{_MIXED}[\w+/~-]{{16,}}(?![\w.(\[])"
    r"|authorization[\"']?\s?[:=]\s?[\"']?(?:bearer|basic|token)\s{1,3}[\w+/.=~-]{8}",
    "a token in a URL": r"://[\w.~%+-]{20,255}@[\w\[]",
}
_NAME = re.compile(r"pass|pwd|secret|contrase|key|token|signature|credential|authorization|://")
_TEXT = re.compile(rb"[\t\r\n -~]{12,}")  # images and numbers contain hardly any text that is as long
_WIDE = re.compile(rb"(?:[\t\r\n -~]\0{1,3}){12,}[\t\r\n -~]?")
_ESCAPE = re.compile(rb"\\+(?:u00([0-7][0-9a-fA-F])|([bfnrt])|)")  # of JSON, also in JSON
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def pieces_of(path: Path) -> Iterator[bytes]:
    """A file, a chunk at a time."""
    with path.open("rb") as stream:
        while piece := stream.read(CHUNK):
            yield piece


class Search:
    """Search for secrets in streams of bytes.

    Args:
        environ: environment; the values that :func:`.secrets.values_of` returns are secrets.
        names: further variables that contain a key.
    """

    def __init__(self, environ: Mapping[str, str], names: Collection[str] = ()) -> None:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
        from detect_secrets.plugins.keyword import FOLLOWED_BY_EQUAL_SIGNS_REGEX, KeywordDetector

        detectors: Mapping[str, Any] = get_mapping_from_secret_type_to_class()
        skipped = SKIPPED | {KeywordDetector.__name__}  # slow: it only gets lines with a suspicious name
        self._keywords = KeywordDetector()
        self._detectors = [detector() for detector in detectors.values() if detector.__name__ not in skipped]
        self._patterns = [(kind, re.compile(pattern, re.IGNORECASE | re.ASCII)) for kind, pattern in ASSIGNED.items()]
        self._patterns.append(("a password or key", FOLLOWED_BY_EQUAL_SIGNS_REGEX))  # KeywordDetector wants quotes
        forms = [(name, form) for name, value in values_of(environ, names) for form in (value, quote(value, safe=""))]
        self._variables = [(f"the value of the variable {name}", form) for name, form in dict.fromkeys(forms)]

    def matches(self, pieces: Iterable[bytes]) -> dict[str, int]:
        """The kinds of secrets in a stream, with the line of the first match of each. The secrets are not returned.

        Texts are ASCII, UTF-8, UTF-16 or UTF-32, also with the escapes of JSON and the quotes of CSV.
        """
        kinds: dict[str, int] = {}
        for line, block in _blocks(pieces):
            text = b"\0".join(_TEXT.findall(block))
            for variant in dict.fromkeys([text, _narrow(block), _unescaped(text)]):
                for kind, at in self._places(variant.decode("ascii")):
                    kinds.setdefault(kind, line + variant.count(b"\n", 0, at))
        return kinds

    def _places(self, text: str) -> Iterator[tuple[str, int]]:
        yield from ((kind, at) for kind, value in self._variables if (at := text.find(value)) >= 0)
        yield from ((shape.kind, at) for shape, at, _end in tokens(text))
        keyword_lines = "\n".join(line for line in text.split("\n") if _NAME.search(line.lower()))
        matches = [(kind, match[0]) for kind, pattern in self._patterns if (match := pattern.search(keyword_lines))]
        matches += [("a password or key", match) for match in self._keywords.analyze_string(keyword_lines)]
        matches += [(f"a {rule.secret_type}", match) for rule in self._detectors for match in rule.analyze_string(text)]
        yield from ((kind, max(0, text.find(match))) for kind, match in matches)


def _blocks(pieces: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """A stream in blocks of :data:`CHUNK` or more, each behind the end of the last one, with the line of its start."""
    line, end, block = 1, b"", bytearray()
    for piece in chain(pieces, [b""]):
        block += piece
        if len(block) - len(end) >= CHUNK or not piece:
            yield line, bytes(block)
            end = bytes(block[-OVERLAP:]).lstrip(_LETTERS)  # the rest of a word that was cut is no start of one
            line += block.count(b"\n", 0, len(block) - len(end))
            block = bytearray(end)


def _narrow(block: bytes) -> bytes:
    """Texts in UTF-16 and UTF-32 as ASCII, also without a letter before or behind that does not belong to them."""
    texts = [match.replace(b"\0", b"") for match in _WIDE.findall(block)]
    return b"\0".join(part for text in texts for part in (text, text[1:], text[:-1]))


def _unescaped(text: bytes) -> bytes:
    """A text without the escapes of JSON and the doubled quotes of CSV."""
    plain = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]) if match[1] else b" " if match[2] else b"", text)
    return plain.replace(b'""', b'"')
