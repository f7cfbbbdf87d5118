"""``paco tour``: metrics of the last run, and commands that show its results."""

from __future__ import annotations

from pathlib import Path

from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.files import DataError, read_json
from paco_core.io.text_table import text_table
from paco_core.runtime import metrics_text

NEXT = """
look at
  {report}
  paco play                     a page to generate, score and edit images with the trained models and the base models
  make ui                       Dagster's asset graph and MLflow's runs; prints their addresses
  paco tables                   the tables of the benchmarks next to the published ones
  dvc dag                       the graph in the terminal
  git add . && git commit -m "First run"     keep it: later runs are compared with it
  dvc metrics diff              after a later run: every metric that differs from the committed one
  dvc exp run -S policies.recipes.flux_t2is.noise_level=0.9     change a parameter: only what depends on it runs again
""".rstrip()


def tour(root: Path) -> Answer:
    """The main metrics of the last run, and the next commands.

    Raises:
        DataError: if the report does not exist yet.
    """
    file = root / paths.metrics_file(paths.REPORT.name)
    if not file.is_file():
        raise DataError(f"{file}: no such file; run `make demo` or `dvc repro`, whose last stage writes it")
    figures = read_json(file)
    texts = metrics_text.as_text(figures)
    lines = ["the run's figures", *text_table(list(texts.items()), indent="  ")]
    report = (root / paths.REPORT / "index.html").resolve().as_uri()
    return Answer("\n".join(lines) + "\n" + NEXT.format(report=report), {"figures": figures, "report": report})
