"""A grid of trainings: variants by seeds, each cell trained once, kept, and logged as a child run.

All cells of a grid hang under one parent run of MLflow. A cell whose result is there under the same key is not
computed again: a grid that was stopped, or killed, goes on where it was. Commands that run side by side on one grid
share its cells: each takes those that nobody else works on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paco_core.config.changes import changed, changes_of
from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.io import paths
from paco_core.io.answer import plain
from paco_core.io.file_locks import hold
from paco_core.io.files import DataError, checked_name, read_json, write_json
from paco_core.io.targets import checked
from paco_core.runtime.placement import one_gpu
from paco_core.runtime.tracking import Tracker, open_run

RESULT = "result.json"
Train = Callable[[Path, Tracker], Mapping[str, Any]]  # in a folder; returns the result as JSON holds it


@dataclass(frozen=True, eq=False)
class Variant:
    """A name, words for people, and what is replaced in a section of ``params.yaml``.

    Attributes:
        changes: dotted keys, whose first word stands for the section, and their values.
        recipe: whose section it is, behind ``recipe.``; None for the reward's.
    """

    name: str
    title: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    recipe: str | None = None


@dataclass(frozen=True)
class Cell:
    """One training: a variant under a seed, what names it by content, and what to do.

    Attributes:
        key: digest of all that its result depends on.
        settings: what its run logs as parameters.
        figures: of the folder and a result, what its run logs.
    """

    variant: Variant
    seed: int
    key: str
    settings: Mapping[str, Any]
    train: Train
    figures: Callable[[Path, dict[str, Any]], Mapping[str, float]]


@dataclass(frozen=True)
class Grid:
    """The cells below ``out``. Their runs stand in the experiment ``paco/VERB``, which ``about`` describes."""

    root: Path
    out: Path
    verb: str
    about: str
    params: Params

    @contextmanager
    def opened(self, cells: Sequence[Cell], device: str | None) -> Iterator[Tracker]:
        """The parent run, and a GPU for this process where the device is one; None for no device."""
        holder = f"{self.verb} {self.out.name} in {self.root}"
        gpu = nullcontext() if device is None else one_gpu([device], holder, self.params, say)
        with self._run(self.out.name, {}) as parent, gpu:
            names = list(dict.fromkeys(cell.variant.name for cell in cells))
            parent.params({"variants": names, "seeds": sorted({cell.seed for cell in cells})})
            yield parent

    def _run(self, name: str, tags: Mapping[str, str]) -> AbstractContextManager[Tracker]:
        tags = {"profile": self.params.profile, f"paco.{self.verb}": self.out.name, **tags}
        return open_run(self.root, f"paco/{self.verb}", name, tags, say, about=self.about)

    def folder(self, cell: Cell) -> Path:
        return self.out / "cells" / f"{cell.variant.name.replace('/', '-over-')}-seed-{cell.seed}"

    def kept(self, cell: Cell) -> dict[str, Any] | None:
        """The cell's result, if it was trained with all that it depends on as it is now."""
        return kept_result(self.folder(cell), cell.key)

    def run(
        self, parent: Tracker, cells: Sequence[Cell], on_fresh: Callable[[], object] = lambda: None
    ) -> list[tuple[Cell, dict[str, Any]]]:
        """The cells with their results, in order, but for those that another command is still training.

        Args:
            on_fresh: called after each cell that was trained now.
        """
        for place, cell in enumerate(cells, start=1):
            folder = self.folder(cell)
            try:  # the kernel lets go of the lock when this process dies
                held = hold(folder.with_name(f".{folder.name}.lock"))
            except BlockingIOError:
                continue
            tags = {"mlflow.parentRunId": parent.run_id or "", "paco.variant": cell.variant.name}
            with held, self._run(f"{cell.variant.name}/seed-{cell.seed}", tags) as tracker:
                if fresh := self.kept(cell) is None:
                    say(f"{self.out.name}: {folder.name} ({place}/{len(cells)})")
                tracker.params(cell.settings)
                result = once(folder, cell.key, tracker, cell.train)
                tracker.tags({"paco.trained_by": str(result["run"])})
                tracker.metrics(cell.figures(folder, result))
            if fresh:
                on_fresh()
        kept = [(cell, self.kept(cell)) for cell in cells]
        for cell in (cell for cell, result in kept if result is None):
            say(f"{self.folder(cell).name}: another command is training it; it is left out here")
        return [(cell, result) for cell, result in kept if result is not None]


def once(folder: Path, key: str, tracker: Tracker, train: Train) -> dict[str, Any]:
    """The result of this key that lies in a folder, else a fresh one, as JSON gives it back (NaN is None).

    ``key`` and ``run``, the id of the run that computed it (None where MLflow had not answered yet), are part of it.
    """
    kept = kept_result(folder, key)
    if kept is None:
        made = plain(dict(train(folder, tracker)))
        write_json(folder / RESULT, {"key": key, "run": tracker.run_id, **made})
        kept = read_json(folder / RESULT)
    return kept


def kept_result(folder: Path, key: str) -> dict[str, Any] | None:
    """The result of this key that lies in a folder."""
    path = folder / RESULT
    kept: dict[str, Any] = read_json(path) if path.is_file() else {}
    return kept if kept.get("key") == key else None


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
