"""Output of a command: lines of text for people, and the same metrics as JSON for programs (``--json``)."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from paco_core.io.secrets import redacted


class Answer(str):
    """A text for people, and the same values as data for ``--json``."""

    figures: Any
    __slots__ = ("figures",)

    def __new__(cls, text: str, figures: Any) -> Answer:
        """``figures``: dataclasses, mappings, sequences, paths and plain values."""
        answer = super().__new__(cls, text)
        answer.figures = figures
        return answer

    def json(self, encoding: str = "utf-8") -> str:
        """The values as JSON. A number that is not finite becomes null, and secrets are redacted.

        Args:
            encoding: encoding of the output stream. Except for UTF-8, characters beyond ASCII are escaped.
        """
        escape = codecs.lookup(encoding).name != "utf-8"
        return redacted(json.dumps(to_jsonable(self.figures), indent=2, ensure_ascii=escape, allow_nan=False))


def to_jsonable(value: Any) -> Any:
    """The same tree with JSON types only."""
    if isinstance(value, Answer):
        return to_jsonable(value.figures)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_jsonable(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return str(value) if isinstance(value, str | Path) else value
