"""Git's answers about a checkout."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from paco_core.io.files import DataError
from paco_core.io.secrets import one_line


def git_output(folder: Path, *args: str) -> str | None:
    """What a git command prints; None outside a checkout, without git, and where the answer is no.

    Raises:
        DataError: when git refuses to read the checkout, because another user owns it, for example.
    """
    try:
        result = subprocess.run(
            ["git", *args], cwd=folder, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
        )
    except FileNotFoundError:
        return None
    if result.returncode == 0:
        return result.stdout.strip()
    if not result.stderr.strip() or "not a git repository" in result.stderr:
        return None
    raise DataError(f"git cannot read the checkout {folder}: {one_line(result.stderr)}")
