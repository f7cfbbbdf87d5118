"""One MLflow run a stage: opened by the stage process, ended FINISHED, FAILED or KILLED, never left running.

The store is a SQLite file in the project unless ``MLFLOW_TRACKING_URI`` says otherwise. What a stage tells
goes to a journal on disk (:mod:`paco_core.tracking.journal`), and another process brings it to the store
(:mod:`paco_core.tracking.courier`): a server that is slow or down stops nothing and loses nothing, and no stage
pays for importing MLflow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.tracking.database import connect
from paco_core.tracking.journal import Delivered, Event, Journal
from paco_core.tracking.post import Post
from paco_core.tracking.store import (
    artifact_location,
    dagster_url,
    flatten,
    git_state,
    run_url,
    tracking_uri,
    without_secrets,
)
from paco_core.tracking.sync import Sent, brief_requests, send_left_over, unsent
from paco_core.tracking.system import SystemMetrics, is_wanted

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "Sent",
    "Terminated",
    "Tracker",
    "brief_requests",
    "connect",
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

    def __init__(self, uri: str, journal: Journal | None, post: Post | None) -> None:
        self.uri = uri
        self._journal, self._post = journal, post

    @property
    def run_id(self) -> str | None:
        """The run's id, None where the store has not created it yet; the first to ask waits a little for it."""
        return self._delivered().run_id

    @property
    def url(self) -> str | None:
        """The run's page, None where the store has not created it yet; the first to ask waits a little for it."""
        done = self._delivered()
        return run_url(self.uri, done.experiment_id, done.run_id) if done.run_id and done.experiment_id else None

    def _delivered(self) -> Delivered:
        return self._post.delivered() if self._post else Delivered()

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

    With ``PACO_TRACKING=off`` nothing is told.
    """
    uri = tracking_uri(root)
    if os.environ.get(SWITCH, "").lower() == "off":
        yield Tracker(uri, None, None)
        return
    journal = Journal.begin(root)
    post = Post(journal, root, say)
    tracker = Tracker(uri, journal, post)
    journal.append(
        {
            "kind": "run",
            "experiment": experiment,
            "name": name,
            "uri": uri,
            "artifacts": artifact_location(root),
            "courier": post.address.key,
            "tags": {**git_state(root), **tags},
        }
    )
    post.open()
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
        if waiting := post.close(patience):
            say(f"{waiting} events of this run wait in {journal.home}; the next stage, or `paco sync`, sends them")
