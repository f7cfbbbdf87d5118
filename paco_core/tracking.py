"""One MLflow run a stage: opened by the stage process, ended FINISHED, FAILED or KILLED, never left running.

The store is a SQLite file in the project unless ``MLFLOW_TRACKING_URI`` says otherwise.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

STORE, ARTIFACTS = "mlflow.db", "mlartifacts"


class Terminated(SystemExit):
    """SIGTERM reached the stage: its run ends KILLED and the process exits with 143."""

    def __init__(self) -> None:
        super().__init__(143)


def tracking_uri(root: Path) -> str:
    """The store in use: ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` at the project root."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(root / STORE).resolve()}"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping to dotted keys: ``{"grpo": {"lr": 1}}`` -> ``{"grpo.lr": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat


def git_state(root: Path) -> dict[str, str]:
    """Commit and whether the tree is dirty; empty outside a git checkout."""

    def git(*args: str) -> str | None:
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {}
    return {"git.commit": commit, "git.dirty": str(bool(git("status", "--porcelain", "-uno"))).lower()}


class Tracker:
    """What a stage may tell MLflow. Every method takes plain values; NaN metrics are kept as NaN."""

    def __init__(self, run_id: str, uri: str) -> None:
        import mlflow

        self.run_id, self.uri = run_id, uri
        self._client = mlflow.MlflowClient(uri)

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters, flattened to dotted keys."""
        from mlflow.entities import Param

        entities = [Param(k, str(v)[:6000]) for k, v in flatten(values).items()]
        for start in range(0, len(entities), 100):
            self._client.log_batch(self.run_id, params=entities[start : start + 100])

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Log metrics of one step in one request."""
        import time

        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self.run_id, metrics=[Metric(k, float(v), now, step) for k, v in values.items()])

    def tags(self, values: Mapping[str, str]) -> None:
        for key, value in values.items():
            self._client.set_tag(self.run_id, key, value)

    def image(self, image: Image.Image, key: str, step: int = 0) -> None:
        """Log a picture of a series: same key, growing step."""
        self._client.log_image(self.run_id, image, key=key, step=step)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        self._client.log_artifact(self.run_id, str(path), folder)

    def text(self, text: str, name: str) -> None:
        self._client.log_text(self.run_id, text, name)

    def dataset(self, name: str, path: str, md5: str) -> None:
        """Log an input data set with its DVC md5 as digest."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        data = Dataset(name=name, digest=md5[:36], source_type="dvc", source=f"dvc://{path}")
        self._client.log_inputs(self.run_id, [DatasetInput(data, [InputTag("mlflow.data.context", "input")])])

    def external_model(self, name: str, path: Path, md5: str) -> None:
        """Register weights by pointer: MLflow knows the model, DVC keeps the bytes."""
        import mlflow

        mlflow.set_tracking_uri(self.uri)
        model = mlflow.create_external_model(
            name=name, source_run_id=self.run_id, tags={"dvc.path": str(path), "dvc.md5": md5}
        )
        self._client.set_tag(self.run_id, "paco.model_id", model.model_id)


@contextmanager
def open_run(root: Path, experiment: str, name: str, tags: Mapping[str, str]) -> Iterator[Tracker]:
    """Open a run and end it by what happened: FINISHED, KILLED on SIGTERM or Ctrl-C, FAILED else.

    ``MLFLOW_RUN_ID`` is set while the run is open, so that the MLflow integrations of accelerate and
    transformers join it instead of starting a second one.
    """
    import logging

    logging.getLogger("alembic").setLevel(logging.WARNING)  # first use prints a line a migration else
    import mlflow

    uri = tracking_uri(root)
    client = mlflow.MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        location = None if os.environ.get("MLFLOW_TRACKING_URI") else (root / ARTIFACTS).resolve().as_uri()
        experiment_id = client.create_experiment(experiment, artifact_location=location)
    else:
        experiment_id = found.experiment_id
    run = client.create_run(experiment_id, run_name=name, tags={**git_state(root), **tags})
    before = os.environ.get("MLFLOW_RUN_ID")
    os.environ["MLFLOW_RUN_ID"] = run.info.run_id
    status = "FAILED"
    try:
        yield Tracker(run.info.run_id, uri)
        status = "FINISHED"
    except (Terminated, KeyboardInterrupt):
        status = "KILLED"
        raise
    finally:
        os.environ.pop("MLFLOW_RUN_ID") if before is None else os.environ.update(MLFLOW_RUN_ID=before)
        client.set_terminated(run.info.run_id, status)
