"""Which run made what, in ``data/runs/``: beside the outs and committed with ``dvc.lock``, never inside an out.

An out is a function of its inputs, so that the same inputs have the same md5; when it was made, by which run and
from which commit lies here. A record belongs to a recipe: it says nothing of another version.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from dvc_project.lockfile import Lock
from paco_core.io import files
from paco_core.io.files import DataError
from paco_core.runtime.provenance.chain import Run

FOLDER = Path("data") / "runs"


def _file(root: Path, label: str) -> Path:
    return root / FOLDER / f"{label}.json"


def keep(root: Path, label: str, recipe: str, run: Run) -> None:
    """Write down the run that made the present outs of a stage (``grids@0``)."""
    files.write_json(_file(root, label), {"recipe": recipe, "run": asdict(run)})


def recorded(root: Path, label: str, recipe: str) -> Run | None:
    """The run that made a stage's outs from this recipe; None where another one is recorded, or none.

    Raises:
        DataError: when the record is damaged.
    """
    record = _record(root, label)
    return record[1] if record and record[0] == recipe else None


def recorded_recipe(root: Path, label: str) -> str | None:
    """The recipe that the recorded run of a stage read; None where none is recorded.

    Raises:
        DataError: when the record is damaged.
    """
    record = _record(root, label)
    return record[0] if record else None


def _record(root: Path, label: str) -> tuple[str, Run] | None:
    path = _file(root, label)
    if not path.is_file():
        return None
    tree = files.read_json(path)
    try:
        return str(tree["recipe"]), Run(**tree["run"])
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not the record of a run ({error!r}); remove it") from None


def recorded_runs(root: Path, lock: Lock) -> dict[str, Run]:
    """The run that made the present outs of each stage or item (``grids@0``), where a record of it lies here.

    Raises:
        DataError: when a record is damaged.
    """
    found = {}
    for label, entry in lock.entries.items():
        if run := recorded(root, label, entry.inputs.digest):
            found[label] = run
    return found
