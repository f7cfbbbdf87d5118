"""Text that may be shown: without passwords, tokens and keys, and without characters that steer a terminal."""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from collections.abc import Collection, Mapping
from types import TracebackType
from urllib.parse import unquote

from paco_core.io.secret_shapes import tokens

HIDDEN = "***"
LONGEST = 300  # characters of a text from outside in a line
SHORTEST = 6  # a shorter value could be an ordinary word
#: User and password before the host. A password of SQLAlchemy may contain a slash, which otherwise ends the host.
_USERINFO = re.compile(r"""(?<=://)(?:[^\s/?#'"<>]*|[^\s/?#@:'"<>]*:(?!\d+/)[^\s?#@'"<>]*)@""")
_QUERY = re.compile(
    r"""([?&;][\w.-]*(?:passw|pwd|token|secret|signature|credential|key|sig)[\w.-]*=)[^\s&;'"<>#]*""", re.IGNORECASE
)
_HEADER = re.compile(r"""(authorization\W{1,4}(?:bearer|basic)\s+)[^\s'"]+""", re.IGNORECASE)
_VARIABLE = re.compile(r"(PASSWORD|PASSWD|PASSPHRASE|TOKEN|SECRET|KEY|WEBHOOK|_PASS|_PWD|_PAT)$", re.IGNORECASE)
_TOKEN_REST = re.compile(r"[\w+/.=~-]*", re.ASCII)  # rest of a token, after its prefix
_KEY_END = re.compile(r"-----END [A-Z0-9 ]*-----|\Z")
#: Control characters except tab and line break, line separators, marks that reorder text, halves of surrogate pairs.
_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)")
_sent_keys: set[str] = set()  # keys that this process sends to servers, whatever their variables are called
STORES = ("MLFLOW_TRACKING_URI", "DAGSTER_POSTGRES_URL")
_PASSWORD = re.compile(r"://[^:/]*:([^@]+)@")  # of SQLAlchemy's URLs


def redacted(text: str) -> str:
    r"""A text without secrets. Control characters are escaped (``\x1b``).

    Secrets are user information and keys of URLs, tokens (:mod:`.secret_shapes`), keys that this process sends
    (:func:`add_secret`), and values of environment variables whose name ends in PASSWORD, TOKEN, SECRET, KEY, WEBHOOK
    or the like. In the URLs of MLflow's and Dagster's stores, the password is a secret.
    """
    for value in sorted({value for _, value in values_of(os.environ)} | _sent_keys, key=len, reverse=True):
        text = text.replace(value, HIDDEN)  # longest first: one may be a part of another
    text = _HEADER.sub(rf"\1{HIDDEN}", bare(_without_tokens(text)))
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str, longest: int = LONGEST) -> str:
    """A text from outside, such as the cause that a server gives, as part of a line: :func:`redacted` and cut."""
    return " ".join(redacted(text).split())[:longest]


def add_secret(value: str) -> None:
    """Let :func:`redacted` hide a key that this process sends."""
    if len(value) >= SHORTEST:
        _sent_keys.add(value)


def _without_tokens(text: str) -> str:
    parts, end = [], 0
    for shape, start, after in sorted(tokens(text), key=lambda place: place[1:]):
        if start >= end:
            match = _KEY_END.search(text, after) if shape.kind == "a private key" else _TOKEN_REST.match(text, after)
            parts += [text[end:start], HIDDEN]
            end = match.end() if match else after
    return "".join([*parts, text[end:]])


def bare(url: str) -> str:
    """A URL without user information and keys. Unlike :func:`redacted`, the result is equal in every environment."""
    return _QUERY.sub(rf"\1{HIDDEN}", _USERINFO.sub("", url))


def values_of(environ: Mapping[str, str], names: Collection[str] = ()) -> list[tuple[str, str]]:
    """Names of environment variables, and the secrets that they contain.

    Args:
        names: variables that contain a secret, whatever their name.
    """
    values = [(name, value) for name, value in environ.items() if name in names or _VARIABLE.search(name)]
    for store in STORES:
        for password in _PASSWORD.findall(environ.get(store, "")):
            values += [(store, password), (store, unquote(password))]
    return [(name, value) for name, value in values if len(value) >= SHORTEST]


def redact_tracebacks() -> None:
    """Redact tracebacks that end this process or a thread, because a message may contain the URL of a store."""

    def show(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))

    def show_of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            show(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook, threading.excepthook = show, show_of_thread
