"""A grid of trainings: settings by seeds, each cell trained once, kept, and logged as a child run.

All cells of a grid hang under one parent run of MLflow. A cell whose result is there under the same key is not
computed again: a grid that was stopped, or killed, goes on where it was. Commands that run side by side on one grid
share its cells: each takes those that nobody else works on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paco_core.config.changes import changed, changes_of
from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.io import paths
from paco_core.io.answer import plain
from paco_core.io.file_locks import hold
from paco_core.io.files import DataError, checked_name, read_json, write_json
from paco_core.io.targets import checked
from paco_core.runtime.tracking import Tracker, open_run

RESULT = "result.json"
Say = Callable[[str], None]


@dataclass(frozen=True)
class OpenCell:
    """One cell while it is looked at: its folder and its run."""

    folder: Path
    tracker: Tracker

    def once(self, key: str, compute: Callable[[OpenCell], Mapping[str, Any]]) -> dict[str, Any]:
        """The kept result of this key, else a fresh one, as JSON gives it back (NaN is None).

        ``key`` and ``run``, the id of the run that computed it (None where MLflow had not answered yet), are
        part of the result.
        """
        kept = kept_result(self.folder, key)
        if kept is None:
            made = plain(dict(compute(self)))
            write_json(self.folder / RESULT, {"key": key, "run": self.tracker.run_id, **made})
            kept = read_json(self.folder / RESULT)
        return kept


@dataclass(frozen=True)
class Cell:
    """One training: a setting's name and a seed, what names it by content, and what to do.

    Attributes:
        settings: what its run logs as parameters.
        key: digest of all that its result depends on.
        compute: trains; returns the result as JSON holds it.
        note: logs a result's figures to the cell's run.
    """

    name: str
    seed: int
    settings: Mapping[str, Any]
    key: str
    compute: Callable[[OpenCell], Mapping[str, Any]]
    note: Callable[[OpenCell, dict[str, Any]], None]


@dataclass(frozen=True)
class Grid:
    """The cells below ``out``, and the parent run that ``parent`` opens."""

    root: Path
    out: Path
    experiment: str
    about: str  # what its runs are
    tags: Mapping[str, str]
    say: Say

    @contextmanager
    def parent(self, settings: Mapping[str, Any]) -> Iterator[Tracker]:
        with open_run(self.root, self.experiment, self.out.name, self.tags, self.say, about=self.about) as tracker:
            tracker.params(settings)
            yield tracker

    def folder(self, cell: Cell) -> Path:
        return cell_folder(self.out, cell.name, cell.seed)

    def is_kept(self, cell: Cell) -> bool:
        """Whether the cell was trained, with all that it depends on as it is now."""
        return kept_result(self.folder(cell), cell.key) is not None

    def run(
        self, parent: Tracker, cells: Sequence[Cell], on_fresh: Callable[[], object] = lambda: None
    ) -> list[tuple[Cell, dict[str, Any]]]:
        """The cells with their results, in order, but for those that another command is still training.

        Args:
            on_fresh: called after each cell that was trained now.
        """
        for place, cell in enumerate(cells, start=1):
            try:  # the kernel lets go of the lock when this process dies
                held = hold(self.folder(cell).with_name(f".{self.folder(cell).name}.lock"))
            except BlockingIOError:
                continue
            with held:
                fresh = not self.is_kept(cell)
                if fresh:
                    self.say(f"{self.out.name}: {cell.name}, seed {cell.seed} ({place}/{len(cells)})")
                self._compute(parent, cell)
            if fresh:
                on_fresh()
        found = [(cell, kept_result(self.folder(cell), cell.key)) for cell in cells]
        for cell, result in found:
            if result is None:
                self.say(f"{cell.name}, seed {cell.seed}: another command is training it; it is left out here")
        return [(cell, result) for cell, result in found if result is not None]

    def _compute(self, parent: Tracker, cell: Cell) -> None:
        """Train the cell unless it is kept; log it as a child run."""
        own = {**self.tags, "mlflow.parentRunId": parent.run_id or "", "paco.setting": cell.name}
        name = f"{cell.name}/seed-{cell.seed}"
        with open_run(self.root, self.experiment, name, own, self.say, about=self.about) as tracker:
            tracker.params(cell.settings)
            opened = OpenCell(self.folder(cell), tracker)
            cell.note(opened, opened.once(cell.key, cell.compute))


def kept_result(folder: Path, key: str) -> dict[str, Any] | None:
    """The result of this key that lies in a cell's folder."""
    path = folder / RESULT
    kept: dict[str, Any] = read_json(path) if path.is_file() else {}
    return kept if kept.get("key") == key else None


def cell_folder(out: Path, name: str, seed: int) -> Path:
    return out / "cells" / f"{name.replace('/', '-over-')}-seed-{seed}"


def begin(root: Path, changes: Sequence[str], seeds: Sequence[int]) -> Params:
    """The changed parameters of a grid.

    Raises:
        DataError: when a seed comes twice, or a change is no ``key=value``.
        ParamsError: when the changed parameters are invalid.
    """
    if len(set(seeds)) < len(seeds):
        raise DataError(f"a seed is given twice: {list(seeds)}")
    return changed(load(root / PARAMS_FILE), changes_of(changes))


def folder_of(place: Path, name: str) -> Path:
    """The folder of a named grid below ``place``.

    Raises:
        DataError: when the name is none, or no folder can be there.
    """
    return checked(place / checked_name(name), "folder")


def say(line: str) -> None:
    """A line of a grid's progress, on standard error: its tables go to standard output."""
    print(line, file=sys.stderr, flush=True)


def needed(root: Path, path: Path) -> Path:
    """The absolute path of what a stage made.

    Raises:
        DataError: when it is not there, naming the stage to run.
    """
    full = root / path
    if not full.exists():
        stage = paths.producer(path)
        raise DataError(f"{full}: missing" + (f"; run `dvc repro {stage}`" if stage else ""))
    return full
