"""Records of runs: ``data/runs/`` names the run that made each out, else MLflow does.

The files are committed with ``dvc.lock``. They are never inside an out: an out depends on its inputs only, so equal
inputs give equal md5s. A record belongs to one recipe and says nothing about another version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dvc_project.lockfile import Lock
from paco_core.io import files
from paco_core.io.files import DataError
from paco_core.runtime.provenance.chain import ENDPOINT_TAG, RECIPE_TAG, STAGE_TAG, Run
from paco_core.runtime.tracking import connect, run_url, tracking_uri
from paco_core.runtime.tracking.store import short

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


class RunFinder:
    """Looks into ``data/runs``, then asks MLflow: a store that does not answer is asked once (``failure`` says why)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._uri = tracking_uri(root)
        self._absent = self._uri.startswith("sqlite:///") and not Path(self._uri[10:]).is_file()  # nothing tracked yet
        self._client: Any = None
        self._experiments: list[str] = []
        self.failure: str | None = None

    def __call__(self, stage: str, recipe: str) -> Run | None:
        run = recorded(self._root, stage, recipe)
        if run is not None and run.mlflow_run is not None:
            return run
        return self._quietly(lambda: self._find(stage, recipe)) or run

    def _quietly(self, ask: Callable[[], Run | None]) -> Run | None:
        if self.failure is not None or self._absent:
            return None
        try:
            return ask()
        except Exception as error:
            self.failure = short(error)
            return None

    def _find(self, stage: str, recipe: str) -> Run | None:
        if self._client is None:
            self._client = connect(self._uri)
            known = self._client.search_experiments()
            self._experiments = [e.experiment_id for e in known if e.name.startswith("paco/")]
        if not self._experiments:
            return None
        wanted = f"tags.`{RECIPE_TAG}` = '{recipe}' and tags.`{STAGE_TAG}` = '{stage}'"
        found = self._client.search_runs(
            self._experiments,
            f"{wanted} and attributes.status = 'FINISHED'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        return self._run(found[0]) if found else None

    def _run(self, run: Any) -> Run:
        tags = run.data.tags
        dirty = tags.get("git.dirty")
        return Run(
            mlflow_run=run.info.run_id,
            mlflow_url=run_url(self._uri, run.info.experiment_id, run.info.run_id),
            started=datetime.fromtimestamp(run.info.start_time / 1000, UTC).isoformat(timespec="seconds"),
            seconds=(run.info.end_time - run.info.start_time) / 1000,
            profile=tags.get("profile"),
            git_commit=tags.get("git.commit"),
            git_dirty=None if dirty is None else dirty == "true",
            dagster_run=tags.get("dagster.run_id"),
            dagster_asset=tags.get("dagster.asset_key"),
            endpoint=tags.get(ENDPOINT_TAG),
        )
