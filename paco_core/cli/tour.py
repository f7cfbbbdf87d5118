"""``paco tour``: after a run, the headline metrics, an image that shows the gain, and where to look next."""

from __future__ import annotations

import shlex
from pathlib import Path

from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.files import DataError, read_json
from paco_core.report.headline import headline_table

LINE = 100  # characters of a line of a command
NEXT = """
look at
  {report}
  paco play                     a page to generate, score and edit images with the trained models and the base models
  make ui                       Dagster's asset graph and MLflow's runs; prints their addresses
  paco tables                   the tables of the benchmarks next to the published ones
  git add . && git commit -m "First run"     keep it: later runs are compared with it
  dvc metrics diff --targets data/metrics/report.json     after a later run: the headline metrics that differ
  dvc exp run -S policies.recipes.flux_t2is.noise_level=0.9     change a parameter: only what depends on it runs again
  paco tour                     this page
""".rstrip()


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
    report = (root / paths.REPORT / "index.html").resolve().as_uri()
    lines = headline_table(rows) if rows else ["no benchmark has measured anything yet"]
    if (command := content["example_command"]) is not None:
        lines += ["", "see a set before and after training (90th percentile of the gains)", *_wrapped(command)]
    figures = {"headline": rows, "example_command": command, "report": report}
    return Answer("\n".join(lines) + "\n" + NEXT.format(report=report), figures)


def _wrapped(command: str) -> list[str]:
    """A command over lines of at most :data:`LINE` characters, where its arguments allow it.

    An option is on one line with its first value.
    """
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
