"""Finds the run of a recorded stage, the one that read the same recipe: beside ``dvc.lock``, else in MLflow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paco_core.runtime.provenance import records
from paco_core.runtime.provenance.chain import ENDPOINT_TAG, RECIPE_TAG, STAGE_TAG, Run
from paco_core.runtime.tracking import connect, run_url, tracking_uri
from paco_core.runtime.tracking.store import short


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
        kept = records.recorded(self._root, stage, recipe)
        if kept is not None and kept.mlflow_run is not None:
            return kept
        return self._quietly(lambda: self._find(stage, recipe)) or kept

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
