"""Outs of a stage that has nothing to do: a folder that says why, for the report, the checks and people."""

from __future__ import annotations

from pathlib import Path

from paco_core.io.files import read_json, write_json

FILE = "skipped.json"


def write_skipped(folder: Path, reason: str) -> None:
    """Write into the out ``folder`` why the stage did nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, {"reason": reason})


def skipped(folder: Path) -> str | None:
    """Why the stage that made ``folder`` did nothing; None where it did something, or has not run.

    Raises:
        DataError: when the file is damaged.
    """
    path = folder / FILE
    return str(read_json(path)["reason"]) if path.is_file() else None
