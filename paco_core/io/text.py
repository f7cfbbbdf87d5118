"""Text from outside: its encoding, which must be UTF-8, and the words that a person writes for a model."""

from __future__ import annotations

import codecs
import json
import math
import re
import unicodedata
from typing import Any

from dvc_project.errors import DataError

BOM = codecs.BOM_UTF8
_OTHER_BOMS = {  # longer marks precede the shorter marks that they begin with
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip


#: Text files, file names and some databases cannot contain them.
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
#: What tokenizers of the supported models read as one token with a meaning of its own: marks of chat templates and of
#: pictures (Qwen, GLM, Llama), the ends and blanks of a text (T5, CLIP, Mistral, Gemma), thoughts and calls of tools.
_MARK = re.compile(
    r"<\|[^<>|\s]+\|>|</?s>|<(?:pad|unk|bos|eos|cls|sep|mask|sop|eop)>|<extra_id_\d+>|<unused\d+>"
    r"|<(?:start|end)_of_\w+>|</?(?:think|tools?|tool_call|tool_response)>|<</?sys>>"
)


def natural_key(name: str) -> list[int | str]:
    """A sort key that orders the numbers in names by their size: ``2.png`` before ``10.png``."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def normalize_text(text: str) -> str:
    """The text in one case and one Unicode form (NFKC), with single blanks and without characters of no width."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    visible = folded if folded.isascii() else "".join(c for c in folded if unicodedata.category(c) != "Cf")
    return " ".join(visible.split())


def template_mark(text: str) -> str | None:
    """The first special token that a tokenizer could read in a text after normalization; None if there is none.

    For example, ``<|im_end|>`` ends the user's turn in Qwen's chat template.
    """
    match = _MARK.search(normalize_text(text)) if "<" in unicodedata.normalize("NFKC", text) else None
    return None if match is None else match.group()


def validate_characters(text: str) -> str:
    """Validate a text, and return it unchanged.

    Raises:
        ValueError: if it contains NUL or half of a surrogate pair.
    """
    if match := _UNWRITABLE.search(text):
        raise ValueError(f"contains the character {match[0]!r}, which is no text; remove it")
    return text


def validate_marks(text: str) -> str:
    """Validate a text for a model, and return it unchanged.

    Raises:
        ValueError: if it contains a special token (:func:`template_mark`), NUL or half of a surrogate pair.
    """
    validate_characters(text)
    if (mark := template_mark(text)) is not None:
        raise ValueError(f"contains {mark}, which a model reads as a mark of its template; remove it")
    return text


def not_blank(text: str) -> str:
    """Validate that a text is visible, and return it unchanged.

    Raises:
        ValueError: if it is empty, or only has white space or characters without width; or as
            :func:`validate_characters`.
    """
    validate_characters(text)
    if not any(character.isprintable() and not character.isspace() for character in text):
        raise ValueError(f"{text!r} is blank, expected words")
    return text


def parse_json(text: str, **hooks: Any) -> Any:
    """:func:`json.loads` for data files and answers. NaN and numbers beyond float64 are refused.

    Raises:
        DataError: if a string contains NUL or half of a surrogate pair, which no text file can contain.
        ValueError, RecursionError: as :func:`json.loads`.
    """
    value = json.loads(text, parse_constant=_finite, parse_float=_finite, **hooks)
    if "\\u" in text and (character := _first_unwritable(value)):
        raise DataError(f"a string has the character {character!r}, which is no text; remove it")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no finite number")
    return value


def _first_unwritable(value: Any) -> str | None:
    if isinstance(value, str):
        match = _UNWRITABLE.search(value)
        return match[0] if match else None
    parts = (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((character for part in parts if (character := _first_unwritable(part))), None)


def spell_surrogates(text: str) -> str:
    r"""Escape half surrogate pairs as in JSON (``\ud800``), so the text can be written."""
    return text.encode(errors="backslashreplace").decode()


def other_encoding(head: bytes) -> str | None:
    """The encoding that the first bytes of a file name by their mark, unless it is UTF-8."""
    return next((name for mark, name in _OTHER_BOMS.items() if head.startswith(mark)), None)


def decoded(data: bytes) -> str:
    """The text of a file or a line, without byte order mark.

    Raises:
        DataError: with the encoding if it is detected, else with the byte that is not UTF-8.
    """
    if name := other_encoding(data):
        raise DataError(f"{name} text, expected UTF-8; save it as UTF-8 (in Excel: CSV UTF-8)")
    try:
        text = data.removeprefix(BOM).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    if "\0" in text:
        raise DataError("not UTF-8 text (it holds zero bytes, as UTF-16 does); save it as UTF-8")
    return text
