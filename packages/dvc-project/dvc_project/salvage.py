"""A ``dvc.lock`` that a killed DVC cut off, told apart from every other one that DVC refuses.

DVC truncates the file and writes it anew, head first. What a kill leaves is therefore the beginning of a file that DVC
would take: it stops in the middle of a line, and it is whole up to the stage that it stops in. Older schemas, conflicts
and edits are none of that, and are left to people.
"""

from __future__ import annotations

import re

from dvc_project.errors import DataError
from dvc_project.lock_schema import SCHEMA, fault
from dvc_project.yaml import parse_yaml

_HEAD = f"schema: '{SCHEMA}'\n"
_EMPTY = f"{_HEAD}stages:\n"
_STAGE = re.compile(r"^  (?=\S)", re.MULTILINE)  # where the record of a stage begins


def whole_part(data: bytes) -> bytes | None:
    """The whole records of a file that was cut off, empty where it holds none; None for any other file."""
    if not data.strip(b"\0"):  # emptied by DVC, or never flushed before a power failure
        return b""
    text = data.decode(errors="replace").rstrip("\0")
    if text.endswith("\n") or _is_accepted(text):
        return None
    begins = [place.start() for place in _STAGE.finditer(text)]
    before = text[: begins[-1]] if begins else ""
    if before == _EMPTY or _EMPTY.startswith(text) or text.rstrip(" ") == _EMPTY:
        return b""
    return before.encode() if text.startswith(_HEAD) and _is_accepted(before) else None


def _is_accepted(text: str) -> bool:
    try:
        return fault(parse_yaml(text)) is None
    except DataError:
        return False
