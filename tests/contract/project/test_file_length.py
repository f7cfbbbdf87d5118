"""Length of source files: a file with more than 400 lines contains more than one idea."""

from __future__ import annotations

from tests.support import REPOSITORY

ROOTS = ("paco_core", "pipelines", "packages", "tools")
MOST_LINES = 400


def test_no_source_file_is_too_long() -> None:
    files = [file for root in ROOTS for file in sorted((REPOSITORY / root).rglob("*.py"))]
    lengths = {file.relative_to(REPOSITORY).as_posix(): len(file.read_bytes().splitlines()) for file in files}
    assert {"paco_core/cli/acts.py", "paco_core/grpo/trainer.py"} <= lengths.keys()
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}
