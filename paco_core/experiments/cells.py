"""A table that takes long, cell by cell: a variant under a seed, computed once, kept, and logged as a child run.

All cells of a table hang under one parent run of MLflow. A cell whose result is there under the same key is
not computed again: a table that was stopped, or killed, goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dvc_project.yaml import parse_yaml
from paco_core.benchmarks.results import jsonable
from paco_core.config.params import Params, parse
from paco_core.io import paths
from paco_core.io.files import DataError, read_json, write_json
from paco_core.runtime.tracking import Tracker, open_run

RESULT = "result.json"
Say = Callable[[str], None]


@dataclass(frozen=True)
class OpenCell:
    """One cell while it is looked at: its folder and its run."""

    folder: Path
    tracker: Tracker

    def once(self, key: str, compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The kept result of this key, else a fresh one, as JSON gives it back (NaN is None).

        ``key`` and ``run``, the id of the run that computed it (None where MLflow had not answered yet), are
        part of the result.
        """
        path = self.folder / RESULT
        kept: dict[str, Any] = read_json(path) if path.is_file() else {}
        if kept.get("key") != key:
            made = jsonable(dict(compute()))
            write_json(path, {"key": key, "run": self.tracker.run_id, **made})
            kept = read_json(path)
        return kept


@dataclass(frozen=True)
class Cells:
    """The cells below ``out``, and the parent run that ``parent`` opens."""

    root: Path
    out: Path
    experiment: str
    tags: Mapping[str, str]
    say: Say

    @contextmanager
    def parent(self, settings: Mapping[str, Any]) -> Iterator[Tracker]:
        with open_run(self.root, self.experiment, self.out.name, self.tags, self.say) as tracker:
            tracker.params(settings)
            yield tracker

    @contextmanager
    def open(self, parent: Tracker, name: str, slug: str, seed: int, settings: Mapping[str, Any]) -> Iterator[OpenCell]:
        """A child run ``name/seed-N`` around the folder ``cells/slug-seed-N``."""
        own = {**self.tags, "mlflow.parentRunId": parent.run_id or "", "paco.setting": name}
        with open_run(self.root, self.experiment, f"{name}/seed-{seed}", own, self.say) as tracker:
            tracker.params(settings)
            yield OpenCell(cell_folder(self.out, slug, seed), tracker)


def cell_folder(out: Path, slug: str, seed: int) -> Path:
    return out / "cells" / f"{slug}-seed-{seed}"


def needed(root: Path, path: Path) -> Path:
    """The absolute path of what a stage made.

    Raises:
        DataError: when it is not there, naming the stage to run.
    """
    full = root / path
    if not full.exists():
        stage = next((name for made, name in paths.PRODUCERS.items() if path == made or made in path.parents), None)
        raise DataError(f"{full}: missing" + (f"; run `dvc repro {stage}`" if stage else ""))
    return full


def changes_of(texts: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts as dotted keys and values, read as YAML.

    Raises:
        DataError: when one has no ``=``, or a value that is no YAML.
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise DataError(f"--set {text!r}: expected key=value, as in reward.epochs=1")
        try:
            found[key] = parse_yaml(value)
        except DataError as error:
            raise DataError(f"--set {text!r}: {error}") from None
    return found


def changed(params: Params, changes: Mapping[str, Any]) -> Params:
    """Parameters with dotted keys changed, checked as the file would be.

    Raises:
        ParamsError: naming an unknown key or invalid value.
    """
    tree = params.model_dump()
    for key, value in changes.items():
        *sections, last = key.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return parse(tree)
