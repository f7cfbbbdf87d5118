"""The tables of all benchmarks on one page: our rows, published ones, who judged and in which words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from dvc_project.lockfile import Lock
from paco_core.benchmarks.tables import ResultTable, read_tables, write_page
from paco_core.io import paths
from paco_core.io.files import write_text
from paco_core.runtime.provenance.records import load_runs
from paco_core.runtime.stage import skip_reason

if TYPE_CHECKING:
    from paco_core.runtime.provenance.chain import Run

TITLE = "Benchmarks"


@dataclass(frozen=True)
class BenchmarkSection:
    """The tables of one benchmark and the run that they are from; none where it did not run, or measured nothing."""

    benchmark: str
    tables: Sequence[ResultTable]
    run: Run | None
    reason: str | None = None  # why it measured nothing

    @property
    def origin(self) -> str:
        """Which run made the figures, in one line."""
        if self.reason is not None:
            return f"{self.benchmark}: skipped: {self.reason}"
        if not self.tables:
            return f"{self.benchmark}: not measured; run `dvc repro {self.benchmark}`"
        if self.run is None:
            return f"{self.benchmark}: the run that dvc.lock names is not recorded here"
        parts = [f"profile {self.run.profile}", f"started {self.run.started}"]
        parts += [f"commit {self.run.git_commit[:10]}"] if self.run.git_commit else []
        parts += [f"MLflow run {self.run.mlflow_run}"] if self.run.mlflow_run else []
        return f"{self.benchmark}: {', '.join(parts)}"


def sections(root: Path, benchmarks: Iterable[str], *, detail: bool = False) -> list[BenchmarkSection]:
    """Of each benchmark its tables, none where it did not run.

    Args:
        benchmarks: stages whose outs hold tables.
        detail: also what the paper does not have: paired differences, figures by task type.

    Raises:
        DataError: when what a benchmark wrote is damaged.
    """
    runs = load_runs(root, Lock.read(root))
    benchmark_sections = []
    for name in benchmarks:
        out = root / paths.DATA / name
        reason = skip_reason(out)
        tables = read_tables(out) if out.is_dir() and reason is None else []
        visible = [table for table in tables if detail or not table.detail]
        benchmark_sections.append(BenchmarkSection(name, visible, runs.get(name), reason))
    return benchmark_sections


def render_markdown(benchmark_sections: Sequence[BenchmarkSection]) -> str:
    """All tables as Markdown."""
    parts = [f"# {TITLE}\n"]
    for section in benchmark_sections:
        parts += [*(table.markdown() for table in section.tables), f"_{section.origin}_\n"]
    return "\n".join(parts)


def render_text(benchmark_sections: Sequence[BenchmarkSection]) -> str:
    """All tables for a terminal."""
    parts = [
        part
        for section in benchmark_sections
        for part in (*(table.text() for table in section.tables), f"{section.origin}\n")
    ]
    return "\n".join(parts)


def files(folder: Path) -> list[Path]:
    """What :func:`write_benchmark_tables` writes to a folder."""
    return [folder / "tables.md", folder / "tables.html"]


def write_benchmark_tables(folder: Path, benchmark_sections: Sequence[BenchmarkSection]) -> None:
    """Write ``tables.md`` and ``tables.html`` (self-contained) to ``folder``."""
    plain, page = files(folder)
    write_text(plain, render_markdown(benchmark_sections))
    body = "\n".join(
        "\n".join([*(table.html() for table in section.tables), f'<p class="note">{escape(section.origin)}</p>'])
        for section in benchmark_sections
    )
    write_page(page, TITLE, body)
