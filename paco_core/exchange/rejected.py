"""Rows of public data that cannot be used: where they are, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def broken_lines(file: Path, rejected: list[tuple[str, str]]) -> Callable[[int, str], None]:
    """For :func:`paco_core.io.files.read_jsonl`: keeps (file:line, cause) of a line that is no JSON object."""
    return lambda number, cause: rejected.append((f"{file}:{number}", f"line: {cause}"))
