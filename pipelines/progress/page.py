"""``.paco/progress/index.html``: what runs, what is done, its figures and first pictures; it reloads itself.

A file, so that no server has to run. Its pictures and figures are those that the pages of Dagster's assets show.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Self

import paco_core
from dvc_project.project import DvcProject, Stage
from paco_core.io import paths
from paco_core.io.atomic import atomic
from paco_core.io.figures_text import as_text
from paco_core.io.files import DataError, read_json
from paco_core.stages import declaration

STYLE = Path(paco_core.__file__).parent / "report" / "templates" / "style.css"  # the report's, which comes at the end
PAGE = Path(".paco") / "progress" / "index.html"
RELOAD_SECONDS, WRITE_SECONDS = 3, 1.0
LOG_LINES = 3  # of a stage that failed: its own error, and what DVC says of it
WAITING, RUNS, STOPPED, DONE, FAILED, KEPT = STATES = ("waits", "runs", "stopped", "done", "failed", "up to date")
_PICTURE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<url>data:image/[^)]+)\)")


@dataclass
class StageRow:
    """A stage on the page. ``lines``: the last lines of its log; when it is done, its first figures instead."""

    name: str
    state: str
    since: float = 0.0
    seconds: float | None = None
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sheet:
    """Pictures that a stage made, in one, as a data URL."""

    stage: str
    alt: str
    url: str


class ProgressPage:
    """Written by a thread of its own whenever something has changed, so that no stage waits for it.

    A context manager: what holds at its end is the last thing that is written.
    """

    def __init__(self, project: DvcProject, waits: Set[str]) -> None:
        self.project, self.file = project, project.root / PAGE
        self._rows = {name: StageRow(name, WAITING if name in waits else KEPT) for name in project.stages}
        self._began = time.monotonic()
        self._lock, self._changed, self._ended = threading.Lock(), threading.Event(), threading.Event()
        self._sheets: dict[str, list[Sheet]] = {}
        self._writer = threading.Thread(target=self._write_on, name="progress-page", daemon=True)

    def __enter__(self) -> Self:
        self._try_to_write()
        self._writer.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._changed.set()
        self._writer.join()
        self._try_to_write()

    def runs(self, name: str) -> None:
        self._set(name, state=RUNS, since=time.monotonic())

    def log_line(self, name: str, line: str) -> None:
        self._set(name, lines=[*self._rows[name].lines, line][-LOG_LINES:])

    def done(self, name: str, seconds: float, *, failed: bool) -> None:
        self._set(name, state=FAILED if failed else DONE, seconds=seconds)

    def _set(self, name: str, **changes: Any) -> None:
        with self._lock:
            for key, value in changes.items():
                setattr(self._rows[name], key, value)
        self._changed.set()

    def _write_on(self) -> None:
        while not self._ended.is_set():
            self._changed.wait(RELOAD_SECONDS)  # without a change, too: the seconds of what runs go on
            self._changed.clear()
            self._try_to_write()
            self._ended.wait(WRITE_SECONDS)

    def _try_to_write(self) -> None:
        with suppress(OSError, ValueError, DataError):  # a full disk, figures half restored: the run itself matters
            self._write()

    def _write(self) -> None:
        over = self._ended.is_set()
        with self._lock:
            rows = [replace(row) for row in self._rows.values()]
        for row in rows:
            if row.state in (DONE, KEPT):
                stage = self.project.stages[row.name]
                row.lines = [figures_of(self.project.root, stage)]
                if row.name not in self._sheets:
                    self._sheets[row.name] = list(sheets_of(self.project.root, stage))
            elif row.state == RUNS:
                row.state = STOPPED if over else RUNS
                row.seconds, row.lines = time.monotonic() - row.since, row.lines[-1:]
        html = _template().render(
            rows=rows,
            counts={state: sum(row.state == state for row in rows) for state in STATES},
            sheets=[sheet for name in reversed(self._rows) for sheet in self._sheets.get(name, ())],
            spent=time.monotonic() - self._began,
            reload=None if over else RELOAD_SECONDS,
            report=self._report() if over else None,
            style=STYLE.read_text(encoding="utf-8"),
        )
        with atomic(self.file) as part:
            part.write_text(html, encoding="utf-8")

    def _report(self) -> str | None:
        page = self.project.root / paths.REPORT / "index.html"
        return page.as_uri() if page.is_file() else None


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = FileSystemLoader(Path(__file__).parent)
    env = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.filters["clock"] = lambda seconds: f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
    return env.get_template("page.html.j2")


def figures_of(root: Path, stage: Stage) -> str:
    """The headline figures of a stage's metrics file; of those before and after a training both."""
    file = root / paths.metrics_file(stage.group, stage.item)
    if not file.is_file():
        return ""
    texts = as_text({key: value for key, value in read_json(file).items() if value is not None})
    found: dict[str, str] = {}
    for patterns in declaration(stage.group).headline:
        found |= next(filter(None, (_matching(texts, pattern) for pattern in patterns)), {})
    return ", ".join(f"{key} {text}" for key, text in found.items())


def _matching(texts: Mapping[str, str], pattern: str) -> dict[str, str]:
    wanted = pattern.removesuffix(".change")  # as_text says "before -> after" under the bare name
    return {key: text for key, text in texts.items() if fnmatchcase(key, wanted)}


def sheets_of(root: Path, stage: Stage) -> Iterator[Sheet]:
    """The pictures that a stage's page shows in Dagster. None where they cannot be drawn: the run itself went well."""
    try:
        from pipelines.previews.stages import preview_metadata  # with Dagster, which takes a second

        values = preview_metadata(root, stage).values()
    except Exception as error:
        yield Sheet(stage.name, f"no picture: {type(error).__name__}: {error}", "")
        return
    for value in values:
        if found := _PICTURE.fullmatch(str(getattr(value, "md_str", ""))):
            yield Sheet(stage.name, found["alt"], found["url"])
