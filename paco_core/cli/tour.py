"""``paco tour``: after a run, the headline metrics and the next steps of the report."""

from __future__ import annotations

import shlex
from pathlib import Path

from paco_core.config.params import PARAMS_FILE, load
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.files import DataError, read_json
from paco_core.report.headline import headline_table
from paco_core.report.next_steps import next_steps
from paco_core.runtime.nvidia_smi import list_gpus

LINE = 100  # characters of a line of a command


def tour(root: Path) -> Answer:
    """The headline metrics of the last run, and the commands to look at its results and to continue.

    Raises:
        DataError: when there is no report, or an earlier version of paco wrote it.
    """
    file = root / paths.REPORT / "metrics.json"
    if not file.is_file():
        raise DataError(f"{file}: no such file; run `make demo` or `dvc repro`, whose last stage writes it")
    content = read_json(file)
    rows = content.get("headline")
    if not isinstance(rows, list):  # earlier versions wrote a mapping
        raise DataError(f"{file}: an earlier version of paco wrote this report; run `dvc repro report`")
    report, command = (root / paths.REPORT / "index.html").resolve().as_uri(), content["example_command"]
    lines = headline_table(rows) if rows else ["no benchmark has measured anything yet"]
    lines += ["", f"Report: {report}"]
    for step in next_steps(load(root / PARAMS_FILE), list_gpus().gpus, command).steps:
        lines += ["", f"{step.title}. {step.text}", *(line for text in step.commands for line in _wrapped(text))]
    return Answer("\n".join(lines), {"headline": rows, "example_command": command, "report": report})


def _wrapped(command: str) -> list[str]:
    """A command, over lines of at most :data:`LINE` characters if it is longer and its arguments allow it.

    An option is on one line with its first value.
    """
    if len(command) + 2 <= LINE:
        return [f"  {command}"]
    lines, current = list[str](), ""
    words = [shlex.quote(word) for word in shlex.split(command)]
    for n in reversed(range(len(words) - 1)):
        if words[n].startswith("--") and not words[n + 1].startswith("--"):
            words[n : n + 2] = [f"{words[n]} {words[n + 1]}"]
    for word in words:
        if current and len(current) + len(word) + 3 > LINE:
            lines.append(f"{current} \\")
            current = "   "
        current = f"{current} {word}" if current else f"  {word}"
    return [*lines, current]
