"""A grid of trainings: variants by seeds, each cell an experiment of DVC, named by all that it depends on.

``dvc exp run --temp`` runs the stages of a cell in a temporary checkout. DVC's run cache returns what ran before with
equal inputs, and checkpoints of trainings lie in the project, so that a cell that was killed resumes. MLflow shows the
runs of a cell under the name of its experiment.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dvc_project.file_locks import hold
from dvc_project.yaml import parse_yaml
from paco_core.config.changes import changed, changes_of
from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.io import paths
from paco_core.io.files import DataError, checked_name, digest
from paco_core.io.targets import checked
from paco_core.runtime.git import git_output
from paco_core.runtime.versions import folder_of_version

LOCK_FILE = "dvc.lock"


@dataclass(frozen=True, eq=False)
class Variant:
    """A name, words for people, and the keys of ``params.yaml`` that it changes.

    Attributes:
        changes: dotted keys and their values; behind ``recipe.``, keys of the variant's recipe.
        recipe: the recipe of ``policies.recipes`` that it trains; None for the reward model.
    """

    name: str
    title: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    recipe: str | None = None


@dataclass(frozen=True)
class Cell:
    """One training: a variant under a seed, the stage to run, and the dotted keys that it changes."""

    variant: Variant
    seed: int
    stage: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """The experiment of a finished cell.

    Attributes:
        commit: of DVC's experiment.
    """

    cell: Cell
    experiment: str
    root: Path
    commit: str

    def read(self, path: Path | str) -> str:
        """The text of a file that git tracks, as the experiment left it."""
        return str(git_output(self.root, "show", f"{self.commit}:./{path}"))

    def metrics(self, stage: str, item: str | None = None) -> dict[str, float]:
        """What the stage reported."""
        return dict(json.loads(self.read(paths.metrics_file(stage, item))))

    def folder(self, path: Path) -> Path:
        """An out that is a folder, as links into DVC's cache.

        Raises:
            DataError: when the experiment did not make it, or DVC's cache lacks it.
        """
        stages = parse_yaml(self.read(LOCK_FILE))["stages"].values()
        outs = {out["path"]: out["md5"] for stage in stages for out in stage.get("outs", ())}
        if path.as_posix() not in outs:
            raise DataError(
                f"the experiment {self.experiment} did not make {path}; remove it with `dvc exp remove "
                f"{self.experiment}` and run the command again"
            )
        return folder_of_version(self.root, path.as_posix(), outs[path.as_posix()])


@dataclass(frozen=True)
class Grid:
    """The cells of a grid, whose tables are in the folder ``out``."""

    root: Path
    out: Path

    @cached_property
    def _tree(self) -> str:
        """The tracked files as they are now: code, parameters, and data by the md5s of ``dvc.lock``.

        Raises:
            DataError: when there is no commit yet, or git does not track ``dvc.lock``: experiments start from both.
        """
        head = git_output(self.root, "rev-parse", "--verify", "--quiet", "HEAD")
        if head is None or git_output(self.root, "ls-files", LOCK_FILE) != LOCK_FILE:
            raise DataError(
                f"{self.root / LOCK_FILE}: not in git, and experiments start from what it records; run `dvc repro`, "
                'then `git add . && git commit -m "First run"`'
            )
        commit = git_output(self.root, "stash", "create") or head
        return str(git_output(self.root, "rev-parse", f"{commit}^{{tree}}"))

    def experiment(self, cell: Cell) -> str:
        """The name of a cell's experiment."""
        key = digest([self._tree, cell.stage, dict(cell.changes)], 8)
        return f"{self._prefix(cell.variant)}{cell.seed}-{key}"

    def _prefix(self, variant: Variant) -> str:
        return f"{self.out.name}-{variant.name.replace('/', '-over-')}-"

    def run(self, cells: Sequence[Cell], on_fresh: Callable[[], object] = lambda: None) -> list[Result]:
        """Run each cell that has no experiment yet, and return the results of all, in order.

        Commands that run side by side share the cells: each skips what another one is training.

        Args:
            on_fresh: called after each cell that ran now.

        Raises:
            DataError: when an experiment fails; its output is on standard error.
        """
        for place, cell in enumerate(cells, start=1):
            name = self.experiment(cell)
            try:  # the kernel releases the lock when this process ends
                lock = hold(self.out / f".{name}.lock")
            except BlockingIOError:
                log(f"{name}: another command is training it; it is left out here")
                continue
            with lock:
                if name in self._experiments():
                    continue
                log(f"{name} ({place}/{len(cells)})")
                self._run(name, cell)
            on_fresh()
        return self.results(cells)

    def _run(self, name: str, cell: Cell) -> None:
        sets = [f"--set-param=++{key}={json.dumps(value)}" for key, value in cell.changes.items()]
        command = [sys.executable, "-m", "dvc", "--wait-for-lock", "exp", "run", "--temp", "--name", name, *sets]
        if subprocess.run([*command, cell.stage], cwd=self.root, stdout=sys.stderr).returncode:
            raise DataError(f"the experiment {name} failed, see its output above; the next run of this command resumes")

    def _experiments(self) -> dict[str, str]:
        """The commit of each experiment by its name."""
        lines = git_output(self.root, "for-each-ref", "--format=%(refname:lstrip=-1) %(objectname)", "refs/exps") or ""
        return dict(line.split() for line in lines.splitlines())

    def results(self, cells: Sequence[Cell]) -> list[Result]:
        """Those of the cells that have run with the tracked files as they are now."""
        experiments = self._experiments()
        names = {self.experiment(cell): cell for cell in cells}
        return [Result(cell, n, self.root, experiments[n]) for n, cell in names.items() if n in experiments]

    def seeds(self, variant: Variant) -> list[int]:
        """The seeds under which a variant has run, with the tracked files as they are now or as they were."""
        pattern = re.compile(rf"{re.escape(self._prefix(variant))}(\d+)-[0-9a-f]{{8}}")
        return sorted({int(match[1]) for name in self._experiments() if (match := pattern.fullmatch(name))})


def begin(root: Path, changes: Sequence[str], seeds: Collection[int]) -> Params:
    """The changed parameters of a grid.

    Raises:
        DataError: when a seed comes twice, or a change is no ``key=value``.
        ParamsError: when the changed parameters are invalid.
    """
    if len(set(seeds)) < len(seeds):
        raise DataError(f"a seed is given twice: {list(seeds)}")
    return changed(load(root / PARAMS_FILE), changes_of(changes))


def experiment_folder(place: Path, name: str) -> Path:
    """The folder of a named grid below ``place``.

    Raises:
        DataError: when the name is none, or no folder can be there.
    """
    return checked(place / checked_name(name), "folder")


def log(line: str) -> None:
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
