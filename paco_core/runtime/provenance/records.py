"""Records of runs: ``data/runs/`` contains the run that made each out. If a record is missing, MLflow is queried.

The files are committed with ``dvc.lock``. They are never inside an out: an out depends on its inputs only, so equal
inputs give equal md5s. A record belongs to one recipe, and is not used for another version.
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


def save_run(root: Path, label: str, recipe: str, run: Run) -> None:
    """Record the run that made the present outs of a stage (``grids@0``)."""
    files.write_json(_file(root, label), {"recipe": recipe, "run": asdict(run)})


def load_run(root: Path, label: str, recipe: str) -> Run | None:
    """The recorded run of a stage; None if no run, or the run of another recipe, is recorded.

    Raises:
        DataError: when the record is damaged.
    """
    record = _load_record(root, label)
    return record[1] if record and record[0] == recipe else None


def load_recipe(root: Path, label: str) -> str | None:
    """The recipe of the recorded run of a stage; None if no run is recorded.

    Raises:
        DataError: when the record is damaged.
    """
    record = _load_record(root, label)
    return record[0] if record else None


def _load_record(root: Path, label: str) -> tuple[str, Run] | None:
    path = _file(root, label)
    if not path.is_file():
        return None
    tree = files.read_json(path)
    try:
        return str(tree["recipe"]), Run(**tree["run"])
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not the record of a run ({error!r}); remove it") from None


def load_runs(root: Path, lock: Lock) -> dict[str, Run]:
    """The recorded runs of the present outs, by stage or item (``grids@0``).

    Raises:
        DataError: when a record is damaged.
    """
    runs = {}
    for label, entry in lock.entries.items():
        if run := load_run(root, label, entry.inputs.digest):
            runs[label] = run
    return runs


class RunFinder:
    """Finds the run of a stage in ``data/runs``, then in MLflow.

    Attributes:
        failure: why MLflow did not answer; it is not queried again.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._uri = tracking_uri(root)
        self._absent = self._uri.startswith("sqlite:///") and not Path(self._uri[10:]).is_file()  # nothing tracked yet
        self._client: Any = None
        self._experiments: list[str] = []
        self.failure: str | None = None

    def __call__(self, stage: str, recipe: str) -> Run | None:
        run = load_run(self._root, stage, recipe)
        if run is not None and run.mlflow_run is not None:
            return run
        return self._quietly(lambda: self._find(stage, recipe)) or run

    def _quietly(self, query: Callable[[], Run | None]) -> Run | None:
        if self.failure is not None or self._absent:
            return None
        try:
            return query()
        except Exception as error:  # MLflow raises many types  # noqa: BLE001
            self.failure = short(error)
            return None

    def _find(self, stage: str, recipe: str) -> Run | None:
        if self._client is None:
            self._client = connect(self._uri)
            experiments = self._client.search_experiments()
            self._experiments = [e.experiment_id for e in experiments if e.name.startswith("paco/")]
        if not self._experiments:
            return None
        condition = f"tags.`{RECIPE_TAG}` = '{recipe}' and tags.`{STAGE_TAG}` = '{stage}'"
        runs = self._client.search_runs(
            self._experiments,
            f"{condition} and attributes.status = 'FINISHED'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        return self._run(runs[0]) if runs else None

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
