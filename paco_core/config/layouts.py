"""A layout as parameters and files hold it: rows x columns, such as ``2x3``."""

from __future__ import annotations

import re

LAYOUT = r"^[1-9][0-9]?x[1-9][0-9]?$"


def no_layout(text: str) -> str:
    """The message about a text that is no layout."""
    return f"{text!r} is not a layout; expected rows x columns from 1 to 99, such as 2x3"


def refuse_layout(layout: object) -> object:
    """What is given, where it is a layout; what is no text is left to its reader.

    Raises:
        ValueError: when it is a text and no layout.
    """
    if isinstance(layout, str) and not re.fullmatch(LAYOUT, layout):
        raise ValueError(no_layout(layout))
    return layout
