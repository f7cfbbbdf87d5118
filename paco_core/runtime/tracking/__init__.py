"""Tracking: one MLflow run per stage, which ends FINISHED, FAILED or KILLED and is never left running.

The store is a SQLite file in the project, unless ``MLFLOW_TRACKING_URI`` names another one. A stage appends events to a
journal on disk (:mod:`paco_core.runtime.tracking.journal`), and another process sends the journal to the store
(:mod:`paco_core.runtime.tracking.sender`). So a server that is slow or down stops nothing and loses nothing, and no
stage pays for importing MLflow.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.io import targets
from paco_core.io.files import DataError
from paco_core.io.messages import permission_message
from paco_core.io.project import owner_root
from paco_core.io.secrets import bare, redacted
from paco_core.runtime.tracking.database import connect, sqlite_file
from paco_core.runtime.tracking.journal import DROPPED_TAG, FOLDER, Delivered, Event, RunJournal
from paco_core.runtime.tracking.models import Adapted
from paco_core.runtime.tracking.sender import Outbox, SyncResult, access_digest, count_journals, send_left_over
from paco_core.runtime.tracking.store import (
    artifact_location,
    dagster_url,
    flatten,
    git_state,
    run_tags,
    run_url,
    tracking_uri,
)

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "Adapted",
    "SyncResult",
    "Terminated",
    "Tracker",
    "connect",
    "count_journals",
    "dagster_url",
    "flatten",
    "git_state",
    "open_run",
    "require_writable",
    "run_url",
    "send_left_over",
    "tracking_uri",
]  # fmt: skip

PATIENCE_S, TERMINATED_PATIENCE_S = 20.0, 5.0  # how long a stage waits for MLflow in all; at its end after SIGTERM
PARAM_CHARACTERS, TAG_CHARACTERS = 6000, 5000
SWITCH = "PACO_TRACKING"  # "off": log nothing (a trial run, an audit)
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}

PrintLine = Callable[[str], None]


class Terminated(SystemExit):
    """SIGTERM reached the stage: its run ends KILLED and the process exits with 143."""

    def __init__(self) -> None:
        super().__init__(143)


class Tracker:
    """Logs to the MLflow run of a stage. Every method takes plain values, writes to disk and returns at once.

    A full disk stops no stage: an event that does not fit is dropped with a message and counted.

    Args:
        header: the first event of the journal; None = log nothing.
    """

    def __init__(self, root: Path, uri: str, header: Event | None, print_line: PrintLine) -> None:
        self.uri = uri
        self.dropped = 0  # events that could not be written
        self._print_line = print_line
        self._journal: RunJournal | None = None
        self._outbox: Outbox | None = None
        if header is not None:
            with self._dropping():
                self._journal = RunJournal.begin(root, header)
                self._outbox = Outbox(self._journal, root, PATIENCE_S)

    @property
    def run_id(self) -> str | None:
        """The id of the run, None if the store has not created it yet; the first call waits a little for it."""
        return self._delivered().run_id

    @property
    def url(self) -> str | None:
        """The page of the run, None if the store has not created it yet; the first call waits a little for it."""
        progress = self._delivered()
        return (
            run_url(self.uri, progress.experiment_id, progress.run_id)
            if progress.run_id and progress.experiment_id
            else None
        )

    def _delivered(self) -> Delivered:
        return self._outbox.delivered() if self._outbox else Delivered()

    def _log(self, event: Event) -> None:
        with self._dropping():
            if self._journal is not None:
                self._journal.append(event)

    def _attach(self, event: Event, name: str, write: Callable[[Path], object]) -> None:
        """Log an event with a file or folder called ``name``, which ``write`` writes to the path that it gets."""
        if self._journal is not None:
            with self._dropping(), self._journal.adding(event, name) as path:
                write(path)

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Count what a full disk refuses, with one message."""
        try:
            yield
        except OSError as error:
            if not is_unwritable(error):
                raise
            self.dropped += 1
            if self.dropped == 1:
                self._print_line(
                    f"{FOLDER} cannot be written ({error.strerror or error}): what this run reports to MLflow is "
                    "dropped until some space is free. If there is none at its end, MLflow shows the run as KILLED"
                )

    def end(self, status: str, patience_s: float) -> None:
        """End the run, wait for its delivery, and print what is left or was refused."""
        if self._journal is None or self._outbox is None:
            return
        if self.dropped:
            self._print_line(
                f"{self.dropped} events of this run could not be written and are missing in MLflow (tag {DROPPED_TAG})"
            )
        before = self.dropped
        self._log({"kind": "end", "status": status, "dropped": self.dropped})
        progress = self._outbox.close(patience_s)
        if progress.refused:
            count = "" if progress.refused == 1 else f"{progress.refused} events were refused; the last: "
            self._print_line(f"{count}{progress.refusal}")
        if waiting := self._journal.count_waiting():
            self._print_line(
                f"{waiting} events of this run wait in {self._journal.home} for MLflow at {bare(self.uri)} "
                f"({self._outbox.problem or progress.outage or 'it is slow'}); the next stage, or `paco sync`, sends "
                "them"
            )
        elif self.dropped == before:
            self._journal.remove()
        self._journal.close()

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters, flattened to dotted keys, without secrets."""
        redacted_values = {key: redacted(str(value))[:PARAM_CHARACTERS] for key, value in flatten(values).items()}
        self._log({"kind": "params", "values": redacted_values})

    def metrics(self, values: Mapping[str, float], step: int = 0, measures: str | None = None) -> None:
        """Log metrics of one step; NaN is kept as NaN.

        Args:
            measures: the run whose model they measure, "" for the model of this run; its page shows them, too.
        """
        if values:
            event = {"kind": "metrics", "step": int(step), "values": {k: float(v) for k, v in values.items()}}
            self._log(event if measures is None else {**event, "measures": measures})

    def tags(self, values: Mapping[str, str]) -> None:
        """Set tags of the run, without secrets."""
        if values:
            self._log({"kind": "tags", "values": {k: redacted(str(v))[:TAG_CHARACTERS] for k, v in values.items()}})

    def image(self, image: Image.Image, key: str, step: int = 0) -> None:
        """Log an image of a series: the same key, growing steps."""
        self._attach({"kind": "image", "key": key, "step": int(step)}, "picture.png", image.save)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Log a file or a folder as it is now; it may change or be removed afterwards."""
        copy = partial(shutil.copytree if path.is_dir() else shutil.copyfile, path)
        self._attach({"kind": "file", "folder": folder}, path.name, copy)

    def text(self, text: str, name: str) -> None:
        """Log a text as the artifact ``name``, without secrets."""
        folder = Path(name).parent.as_posix()
        event = {"kind": "file", "folder": None if folder == "." else folder}
        self._attach(event, Path(name).name, lambda path: path.write_text(redacted(text), encoding="utf-8"))

    def dataset(self, name: str, path: str, md5: str) -> None:
        """Log a data set with its DVC md5 as digest."""
        self._log({"kind": "dataset", "name": name, "path": path, "md5": md5, "context": "input"})

    def external_model(self, name: str, path: Path, tags: Mapping[str, str]) -> None:
        """Log weights by pointer: MLflow knows the model, DVC keeps the bytes."""
        self._log({"kind": "model", "name": name, "tags": {"dvc.path": path.as_posix(), **tags}})

    def adapter(self, name: str, path: Path, folder: Path, adapted: Adapted, tags: Mapping[str, str]) -> None:
        """Log an adapter with its files, so that MLflow loads it.

        Args:
            path: the out of the stage that contains it.
            folder: where its files are now; they may change or be removed afterwards.
        """
        tags = {"dvc.path": path.as_posix(), **tags}
        event = {"kind": "model", "name": name, "tags": tags, "adapted": asdict(adapted)}
        self._attach(event, "adapter", partial(shutil.copytree, folder))


def is_unwritable(error: OSError) -> bool:
    """Whether a disk, or a limit of it, refuses a write; ``copytree`` reports it in words only."""
    return error.errno in UNWRITABLE or (isinstance(error, shutil.Error) and "[Errno 28]" in str(error))


def _print_line(line: str) -> None:
    print(redacted(line), file=sys.stderr, flush=True)


def require_writable(root: Path) -> None:
    """Make sure that runs of a project can be recorded, before anything is computed for one.

    Raises:
        DataError: with the file or folder that cannot be written, and its owner.
    """
    targets.writable(owner_root(root) / FOLDER)
    file = sqlite_file(tracking_uri(root))
    if file is not None and file.exists() and not os.access(file, os.W_OK):
        raise DataError(f"{file} cannot be written: {permission_message(file)}")


@contextmanager
def open_run(
    root: Path,
    experiment: str,
    name: str,
    tags: Mapping[str, str],
    print_line: PrintLine = _print_line,
    *,
    about: str = "",
    views: Mapping[str, str] | None = None,
) -> Iterator[Tracker]:
    """Open a run and end it: FINISHED, KILLED after SIGTERM or Ctrl-C, FAILED after any other exception.

    With ``PACO_TRACKING=off`` nothing is logged.

    Args:
        about: description of the experiment for its page in MLflow.
        views: tags of the experiment that hold saved views of its page (:mod:`paco_core.runtime.tracking.views`).
    """
    uri, header = tracking_uri(root), None
    if os.environ.get(SWITCH, "").lower() != "off":
        header = {
            "kind": "run",
            "experiment": experiment,
            "about": about,
            "views": dict(views or {}),
            "name": name,
            "uri": bare(uri),
            "needs_credentials": bare(uri) != uri,
            "artifacts": artifact_location(root),
            "access": access_digest(uri, os.environ),
            "tags": {key: redacted(str(value)) for key, value in {**run_tags(root, name), **tags}.items()},
        }
    tracker = Tracker(root, uri, header, print_line)
    status, patience_s = "FAILED", PATIENCE_S
    try:
        yield tracker
        status = "FINISHED"
    except (Terminated, KeyboardInterrupt):
        status, patience_s = "KILLED", TERMINATED_PATIENCE_S
        raise
    finally:
        tracker.end(status, patience_s)
