"""One MLflow run a stage: opened by the stage process, ended FINISHED, FAILED or KILLED, never left running.

The store is a SQLite file in the project unless ``MLFLOW_TRACKING_URI`` says otherwise. What a stage logs
goes to a journal on disk (:mod:`paco_core.runtime.tracking.journal`), and another process brings it to the store
(:mod:`paco_core.runtime.tracking.daemon`): a server that is slow or down stops nothing and loses nothing, and no stage
pays for importing MLflow.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.io import targets
from paco_core.io.files import DataError
from paco_core.io.messages import not_yours
from paco_core.io.project import owner_root
from paco_core.io.secrets import bare, redacted
from paco_core.runtime.tracking.database import connect, sqlite_file
from paco_core.runtime.tracking.journal import DROPPED_TAG, FOLDER, Delivered, Event, RunJournal
from paco_core.runtime.tracking.models import Adapted
from paco_core.runtime.tracking.outbox import Outbox, SenderAddress
from paco_core.runtime.tracking.sender import Sent, send_left_over, unsent
from paco_core.runtime.tracking.store import (
    artifact_location,
    dagster_url,
    flatten,
    git_state,
    run_url,
    surroundings,
    tracking_uri,
)
from paco_core.runtime.tracking.system import SystemMetrics, is_wanted

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "Adapted",
    "Sent",
    "Terminated",
    "Tracker",
    "connect",
    "dagster_url",
    "flatten",
    "git_state",
    "open_run",
    "require_writable",
    "run_url",
    "send_left_over",
    "tracking_uri",
    "unsent",
]

PATIENCE_S, HASTE_S = 20.0, 5.0  # what a stage waits for MLflow in all; at its end after SIGTERM
PARAM_CHARACTERS, TAG_CHARACTERS = 6000, 5000
HELD_SAMPLES = 30  # of the machine, 10 s apart
SWITCH = "PACO_TRACKING"  # "off": log nothing (a trial run, an audit)
UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


class Terminated(SystemExit):
    """SIGTERM reached the stage: its run ends KILLED and the process exits with 143."""

    def __init__(self) -> None:
        super().__init__(143)


class Tracker:
    """What a stage may log to MLflow. Every method takes plain values, writes to disk and returns at once.

    A disk that is full stops no stage: what cannot be written is dropped with a message and counted.
    """

    def __init__(self, uri: str, journal: RunJournal | None, outbox: Outbox | None, say: Callable[[str], None]) -> None:
        self.uri = uri
        self.dropped = 0  # events that could not be written
        self._journal, self._outbox, self._say = journal, outbox, say
        self._lock, self._holds = threading.Lock(), True
        self._held: list[Event] = []  # figures of the machine that wait for the stage's first

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
        return self._outbox.delivered() if self._outbox else Delivered()

    def _log(self, event: Event) -> None:
        if self._journal is not None:
            with self._dropping():
                self._journal.append(event)

    def _attach(self, event: Event, name: str, write: Callable[[Path], object]) -> None:
        """Log an event with a file or folder called ``name``, which ``write`` writes to the path that it gets."""
        if self._journal is not None:
            with self._dropping(), self._journal.adding(event, name) as path:
                write(path)

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not is_unwritable(error):
                raise
            self.dropped += 1
            if self.dropped == 1 and self._journal is not None:
                self._say(
                    f"{self._journal.home} cannot be written ({error.strerror or error}): what this run reports to "
                    "MLflow is dropped until some space is free"
                )

    def params(self, values: Mapping[str, Any]) -> None:
        """Log parameters, flattened to dotted keys, without secrets."""
        shown = {key: redacted(str(value))[:PARAM_CHARACTERS] for key, value in flatten(values).items()}
        self._log({"kind": "params", "values": shown})

    def metrics(self, values: Mapping[str, float], step: int = 0, measures: str | None = None) -> None:
        """Log metrics of one step; NaN is kept as NaN.

        Args:
            measures: the run whose model they measure, "" for that of this run; they stand on the model's page, too.
        """
        if values:
            event = {"kind": "metrics", "step": int(step), "values": {k: float(v) for k, v in values.items()}}
            self._log(event if measures is None else {**event, "measures": measures})
            self._log_held()

    def system(self, values: Mapping[str, float], step: int) -> None:
        """Log figures of the machine, behind the first metrics of the stage.

        MLflow's pages list and choose metrics in the order of their arrival. A stage that reports none keeps them
        back for some minutes only.
        """
        event = {"kind": "metrics", "step": step, "values": dict(values), "time": int(time.time() * 1000)}
        with self._lock:
            self._held.append(event)
            waits = self._holds and len(self._held) < HELD_SAMPLES
        if not waits:
            self._log_held()

    def _log_held(self) -> None:
        with self._lock:
            self._holds, held, self._held = False, self._held, []
        for event in held:
            self._log(event)

    def tags(self, values: Mapping[str, str]) -> None:
        """Set tags of the run, without secrets."""
        if values:
            self._log({"kind": "tags", "values": {k: redacted(str(v))[:TAG_CHARACTERS] for k, v in values.items()}})

    def image(self, image: Image.Image, key: str, step: int = 0) -> None:
        """Log a picture of a series: same key, growing step."""
        self._attach({"kind": "image", "key": key, "step": int(step)}, "picture.png", image.save)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Log a file or a folder as it is now; it may change or go afterwards."""
        copied = partial(shutil.copytree if path.is_dir() else shutil.copyfile, path)
        self._attach({"kind": "file", "folder": folder}, path.name, copied)

    def text(self, text: str, name: str) -> None:
        """Log a text as the artefact ``name``, without secrets."""
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
            path: the out of a stage that holds it.
            folder: where its files are now; they may change or go afterwards.
        """
        tags = {"dvc.path": path.as_posix(), **tags}
        event = {"kind": "model", "name": name, "tags": tags, "adapted": adapted.as_dict()}
        self._attach(event, "adapter", partial(shutil.copytree, folder))


def is_unwritable(error: OSError) -> bool:
    """Whether a disk, or a limit of it, does not take what is written; ``copytree`` says it in words only."""
    return error.errno in UNWRITABLE or (isinstance(error, shutil.Error) and "[Errno 28]" in str(error))


def _say(line: str) -> None:
    print(redacted(line), file=sys.stderr, flush=True)


def require_writable(root: Path) -> None:
    """Make sure that runs of a project can be recorded, before anything is computed for one.

    Raises:
        DataError: naming the file or folder that cannot be written, and whose it is.
    """
    targets.writable(owner_root(root) / FOLDER)
    file = sqlite_file(tracking_uri(root))
    if file is not None and file.exists() and not os.access(file, os.W_OK):
        raise DataError(f"{file} cannot be written: {not_yours(file)}")


@contextmanager
def open_run(
    root: Path,
    experiment: str,
    name: str,
    tags: Mapping[str, str],
    say: Callable[[str], None] = _say,
    *,
    about: str = "",
    views: Mapping[str, str] | None = None,
) -> Iterator[Tracker]:
    """Open a run and end it by what happened: FINISHED, KILLED on SIGTERM or Ctrl-C, FAILED else.

    With ``PACO_TRACKING=off`` nothing is logged.

    Args:
        about: what the experiment's runs are, for its page in MLflow.
        views: tags of the experiment that hold saved views of its page (:mod:`paco_core.runtime.tracking.views`).
    """
    uri = tracking_uri(root)
    off = os.environ.get(SWITCH, "").lower() == "off"
    shown = {"about": about, "views": dict(views or {})}
    journal = None if off else _begin(root, uri, experiment, name, {**surroundings(root, name), **tags}, shown, say)
    if journal is None:
        yield Tracker(uri, None, None, say)
        return
    outbox = Outbox(journal, root, say, PATIENCE_S)
    tracker = Tracker(uri, journal, outbox, say)
    outbox.open()
    system = SystemMetrics(tracker.system) if is_wanted() else None
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
        tracker._log_held()
        _end(journal, status, tracker.dropped, say)
        if waiting := outbox.close(patience):
            say(
                f"{waiting} events of this run wait in {journal.home} for MLflow at {bare(uri)}; "
                "the next stage, or `paco sync`, sends them"
            )


def _begin(
    root: Path,
    uri: str,
    experiment: str,
    name: str,
    tags: Mapping[str, str],
    shown: Mapping[str, object],
    say: Callable[[str], None],
) -> RunJournal | None:
    """The journal of a new run; None, with a message, where the disk does not take it."""
    header = {
        "kind": "run",
        "experiment": experiment,
        **shown,
        "name": name,
        "uri": bare(uri),
        "needs_credentials": bare(uri) != uri,
        "artifacts": artifact_location(root),
        "sender": SenderAddress.from_environment(root, os.environ).key,
        "tags": {key: redacted(str(value)) for key, value in tags.items()},
    }
    try:
        return RunJournal.begin(root, header)
    except OSError as error:
        if not is_unwritable(error):
            raise
        say(f"nothing from this run is reported to MLflow: no journal can be written ({error}); free some space")
        return None


def _end(journal: RunJournal, status: str, dropped: int, say: Callable[[str], None]) -> None:
    if dropped:
        say(f"{dropped} events of this run could not be written and are missing in MLflow (tag {DROPPED_TAG})")
    try:
        journal.end(status, dropped)
    except OSError as error:
        if not is_unwritable(error):
            raise
        say(f"{journal.home}: the run's end ({status}) cannot be written ({error}); MLflow will show it as KILLED")
