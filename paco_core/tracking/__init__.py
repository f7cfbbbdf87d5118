"""One MLflow run a stage: opened by the stage process, ended FINISHED, FAILED or KILLED, never left running.

The store is a SQLite file in the project unless ``MLFLOW_TRACKING_URI`` says otherwise. What a stage tells
goes to a journal on disk first and from there to the store (:mod:`paco_core.tracking.journal`), so that a
server that is slow or down stops nothing and loses nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.imports import uncollected
from paco_core.tracking.journal import Event, Journal
from paco_core.tracking.sender import Sender, Sent, brief_requests, send_left_over, unsent
from paco_core.tracking.store import (
    artifact_location,
    dagster_url,
    flatten,
    git_state,
    run_url,
    tracking_uri,
    without_secrets,
)
from paco_core.tracking.system import SystemMetrics, is_wanted

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "Sent",
    "Terminated",
    "Tracker",
    "brief_requests",
    "dagster_url",
    "flatten",
    "git_state",
    "open_run",
    "run_url",
    "send_left_over",
    "tracking_uri",
    "unsent",
    "without_secrets",
]

PATIENCE_S, HASTE_S = 60.0, 5.0  # for the last figures at the end of a run; after SIGTERM
PARAM_CHARACTERS, TAG_CHARACTERS = 6000, 5000
SWITCH = "PACO_TRACKING"  # "off": tell nobody (a trial run, an audit)


class Terminated(SystemExit):
    """SIGTERM reached the stage: its run ends KILLED and the process exits with 143."""

    def __init__(self) -> None:
        super().__init__(143)


class Tracker:
    """What a stage may tell MLflow. Every method takes plain values, writes to disk and returns at once."""

    def __init__(self, uri: str, journal: Journal | None, sender: Sender | None) -> None:
        self.uri = uri
        self._journal, self._sender = journal, sender

    @property
    def run_id(self) -> str | None:
        """The run's id, None while the store has not created it yet."""
        return self._sender.delivery.done.run_id if self._sender else None

    @property
    def url(self) -> str | None:
        """The run's page, None while the store has not created it yet."""
        done = self._sender.delivery.done if self._sender else None
        return (
            run_url(self.uri, done.experiment_id, done.run_id) if done and done.run_id and done.experiment_id else None
        )

    def _tell(self, event: Event) -> None:
        if self._journal is not None:
            self._journal.append(event)

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters, flattened to dotted keys."""
        self._tell({"kind": "params", "values": {k: str(v)[:PARAM_CHARACTERS] for k, v in flatten(values).items()}})

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        """Log metrics of one step; NaN is kept as NaN."""
        if values:
            self._tell({"kind": "metrics", "step": int(step), "values": {k: float(v) for k, v in values.items()}})

    def tags(self, values: Mapping[str, str]) -> None:
        if values:
            self._tell({"kind": "tags", "values": {k: str(v)[:TAG_CHARACTERS] for k, v in values.items()}})

    def image(self, image: Image.Image, key: str, step: int = 0) -> None:
        """Log a picture of a series: same key, growing step."""
        if self._journal is None:
            return
        path = self._journal.new_file("picture.png")
        image.save(path)
        name = path.relative_to(self._journal.home).as_posix()
        self._tell({"kind": "image", "key": key, "step": int(step), "file": name})

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Log a file or a folder as it is now; it may change or go afterwards."""
        if self._journal is not None:
            self._tell({"kind": "file", "file": self._journal.keep(path), "folder": folder})

    def text(self, text: str, name: str) -> None:
        """Log a text as the artefact ``name``."""
        if self._journal is None:
            return
        path = self._journal.new_file(Path(name).name)
        path.write_text(text, encoding="utf-8")
        folder = Path(name).parent.as_posix()
        file = path.relative_to(self._journal.home).as_posix()
        self._tell({"kind": "file", "file": file, "folder": None if folder == "." else folder})

    def dataset(self, name: str, path: str, md5: str, context: str = "input") -> None:
        """Log a data set with its DVC md5 as digest."""
        self._tell({"kind": "dataset", "name": name, "path": path, "md5": md5, "context": context})

    def external_model(self, name: str, path: Path, md5: str) -> None:
        """Register weights by pointer: MLflow knows the model, DVC keeps the bytes."""
        self._tell({"kind": "model", "name": name, "tags": {"dvc.path": path.as_posix(), "dvc.md5": md5}})


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def open_run(
    root: Path, experiment: str, name: str, tags: Mapping[str, str], say: Callable[[str], None] = _say
) -> Iterator[Tracker]:
    """Open a run and end it by what happened: FINISHED, KILLED on SIGTERM or Ctrl-C, FAILED else.

    ``MLFLOW_RUN_ID`` is set while the run is open, so that the MLflow integrations of accelerate and
    transformers join it instead of starting a second one. With ``PACO_TRACKING=off`` nothing is told.
    """
    uri = tracking_uri(root)
    if os.environ.get(SWITCH, "").lower() == "off":
        yield Tracker(uri, None, None)
        return
    import logging

    logging.getLogger("alembic").setLevel(logging.WARNING)  # first use prints a line a migration else
    with uncollected():
        import mlflow  # noqa: F401  (here, for imports in two threads at once may meet half-loaded modules)

    journal = Journal.begin(root)
    sender = Sender(journal, uri, root, say)
    tracker = Tracker(uri, journal, sender)
    journal.append(
        {
            "kind": "run",
            "experiment": experiment,
            "name": name,
            "uri": uri,
            "artifacts": artifact_location(root),
            "tags": {**git_state(root), **tags},
        }
    )
    with brief_requests(), _joined_by_others(sender, tracker):
        system = SystemMetrics(tracker.metrics) if is_wanted() else None
        if system is not None:
            system.start()
        status, patience = "FAILED", PATIENCE_S
        try:
            yield tracker
            status = "FINISHED"
        except (Terminated, KeyboardInterrupt):
            status, patience = "KILLED", HASTE_S
            raise
        finally:
            if system is not None:
                system.stop()
            journal.append({"kind": "end", "status": status})
            _close(sender, patience, say)
    if status == "FINISHED":
        _help_others(root, say)


@contextmanager
def _joined_by_others(sender: Sender, tracker: Tracker) -> Iterator[None]:
    before = os.environ.get("MLFLOW_RUN_ID")
    with uncollected():  # the first request imports the store
        sender.start()
    if tracker.run_id is not None:
        os.environ["MLFLOW_RUN_ID"] = tracker.run_id
    try:
        yield
    finally:
        os.environ.pop("MLFLOW_RUN_ID", None) if before is None else os.environ.update(MLFLOW_RUN_ID=before)


def _close(sender: Sender, patience_s: float, say: Callable[[str], None]) -> None:
    waiting = sender.close(patience_s)
    if waiting:
        say(f"{waiting} events of this run wait in {sender.journal.home}; the next stage, or `paco sync`, sends them")


def _help_others(root: Path, say: Callable[[str], None]) -> None:
    """Send what an earlier process could not."""
    sent = send_left_over(root, HASTE_S)
    if sent.runs:
        say(f"MLflow: {sent.text()}")
