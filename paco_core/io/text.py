"""Text from outside: UTF-8, with a byte order mark or without; any other encoding is refused by its name."""

from __future__ import annotations

import codecs

from dvc_project.errors import DataError

BOM = codecs.BOM_UTF8
_OTHERS = {  # a longer mark stands before the shorter one that it begins with
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip


def not_blank(text: str) -> str:
    """The text as it is.

    Raises:
        ValueError: when it shows nothing: empty, white space, or characters of no width.
    """
    if not any(character.isprintable() and not character.isspace() for character in text):
        raise ValueError(f"{text!r} is blank, expected words")
    return text


def other_encoding(head: bytes) -> str | None:
    """The encoding that the first bytes of a file name by their mark, unless it is UTF-8."""
    return next((name for mark, name in _OTHERS.items() if head.startswith(mark)), None)


def decoded(data: bytes) -> str:
    """The text of a file or of a line, without the byte order mark.

    Raises:
        DataError: naming the encoding where it is known, else the byte that is not UTF-8.
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
