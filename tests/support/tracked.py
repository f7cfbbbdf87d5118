"""Runs as a project's MLflow store shows them."""

from __future__ import annotations

from pathlib import Path

import mlflow
from mlflow.entities import Run


def store(root: Path) -> mlflow.MlflowClient:
    return mlflow.MlflowClient(f"sqlite:///{root / 'mlflow.db'}")


def runs(root: Path) -> dict[str, Run]:
    """Name -> run."""
    experiments = [experiment.experiment_id for experiment in store(root).search_experiments()]
    return {run.info.run_name: run for run in store(root).search_runs(experiments)}


def history(root: Path, run_id: str, key: str = "loss") -> list[tuple[int, float]]:
    """Steps and values of a metric."""
    return [(metric.step, metric.value) for metric in store(root).get_metric_history(run_id, key)]
