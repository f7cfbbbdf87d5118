"""Text that may be shown: without the passwords, tokens and keys that URLs and messages of libraries carry."""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from types import TracebackType
from urllib.parse import unquote

HIDDEN = "***"
SHORTEST = 6  # a shorter value of a variable is a word that may stand anywhere
#: User and password before the host. A password of SQLAlchemy's may hold a slash, which ends the host elsewhere.
_USERINFO = re.compile(r"""(?<=://)(?:[^\s/?#'"<>]*|[^\s/?#@:'"<>]*:(?!\d+/)[^\s?#@'"<>]*)@""")
_QUERY = re.compile(
    r"""([?&;][\w.-]*(?:passw|pwd|token|secret|signature|credential|key|sig)[\w.-]*=)[^\s&;'"<>#]*""", re.IGNORECASE
)
_HEADER = re.compile(r"""(authorization\W{1,4}(?:bearer|basic)\s+)[^\s'"]+""", re.IGNORECASE)
_VARIABLE = re.compile(r"(PASSWORD|TOKEN|SECRET|KEY|WEBHOOK)$")
STORES = ("MLFLOW_TRACKING_URI", "DAGSTER_POSTGRES_URL")
_PASSWORD = re.compile(r"://[^:/]*:([^@]+)@")  # of SQLAlchemy's URLs


def redacted(text: str) -> str:
    """A text without secrets: user information and keys of URLs, and values of variables that hold a secret.

    Variables hold one when their name ends in PASSWORD, TOKEN, SECRET, KEY or WEBHOOK; of the URLs of MLflow's and
    Dagster's stores the password counts.
    """
    for value in _secret_values():
        text = text.replace(value, HIDDEN)
    return _HEADER.sub(rf"\1{HIDDEN}", bare(text))


def bare(url: str) -> str:
    """A URL without user information and keys. Other than :func:`redacted`, it is the same in every environment."""
    return _QUERY.sub(rf"\1{HIDDEN}", _USERINFO.sub("", url))


def _secret_values() -> list[str]:
    """Longest first: one may be a part of another."""
    values = [value for name, value in os.environ.items() if _VARIABLE.search(name)]
    for store in STORES:
        for password in _PASSWORD.findall(os.environ.get(store, "")):
            values += [password, unquote(password)]
    return sorted({value for value in values if len(value) >= SHORTEST}, key=len, reverse=True)


def redact_tracebacks() -> None:
    """Print what ends this process, or a thread of it, without secrets: a message may quote the URL of a store."""

    def show(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))

    def show_of_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            show(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook, threading.excepthook = show, show_of_thread
