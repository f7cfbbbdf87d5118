"""Layouts in parameters and files: rows x columns, such as ``2x3``."""

from __future__ import annotations

import re

LAYOUT = r"^[1-9][0-9]?x[1-9][0-9]?$"


def no_layout(text: str) -> str:
    """The message about an invalid layout."""
    return f"{text!r} is not a layout; expected rows x columns from 1 to 99, such as 2x3"


def validate_layout(layout: object) -> object:
    """Check a layout and return it. A value that is not a string is returned unchecked.

    Raises:
        ValueError: when the string is not a layout.
    """
    if isinstance(layout, str) and not re.fullmatch(LAYOUT, layout):
        raise ValueError(no_layout(layout))
    return layout
