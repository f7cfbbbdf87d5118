"""Journal of a run: an append-only file of JSON lines, on disk until an MLflow store has all of them.

``.paco/tracking/<id>/`` contains ``events.jsonl``, ``files/`` (images and artifacts that wait), ``delivered.json``
(how much the store has, and what it refused) and two lock files: the writer locks ``alive``, and the process that sends
to the store locks ``delivering``. The folder is removed when the store has everything. What a store refuses for good is
moved to ``.paco/tracking/refused/<id>/``.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from typing import IO, Any

from dvc_project.file_locks import is_held, try_hold
from paco_core.io.files import append_line, write_json
from paco_core.io.project import owner_root
from paco_core.io.secrets import redacted
from paco_core.runtime.tracking.database import with_present_store

FOLDER = Path(".paco") / "tracking"
REJECTED_DIR = "refused"
HIDDEN = "."  # prefix of a journal that has no first event yet
DROPPED_TAG = "paco.dropped"  # number of events that did not fit on the disk
NOTE_TAG = "mlflow.note.content"  # MLflow shows it as the description of a run or an experiment

Event = dict[str, Any]


class DamagedJournal(ValueError):
    """A line of a journal is not an event. The message contains the file and the byte."""


@dataclass
class Delivered:
    """How much of a journal the store has.

    Attributes:
        offset: bytes of ``events.jsonl``.
        failed: number of attempts that the store did not answer.
        outage: error of the last attempt; empty if the store answered.
        refused: number of events that the store refused for good.
        refusal: error of the last of them.
    """

    offset: int = 0
    run_id: str | None = None
    experiment_id: str | None = None
    failed: int = 0
    outage: str = ""
    refused: int = 0
    refusal: str = ""


class RunJournal:
    """Events of one run. The writer appends; one sender at a time reads on from the delivered offset."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock = threading.Lock()
        self._alive: IO[bytes] | None = None

    @property
    def events(self) -> Path:
        return self.home / "events.jsonl"

    # --- the writer ----------------------------------------------------------------------------------

    @classmethod
    def begin(cls, root: Path, first: Event) -> RunJournal:
        """A new journal with its first event. This process is its writer until :meth:`close`.

        Senders see it only after it is locked and has that event.

        Raises:
            OSError: when it cannot be written; nothing is left of it.
        """
        folder = owner_root(root) / FOLDER
        name = f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:8]}"
        journal = cls(folder / f"{HIDDEN}{name}")
        try:
            journal.home.mkdir(parents=True, mode=0o700)
            journal._alive = try_hold(journal.home / "alive")
            journal.append(first)
        except OSError:
            shutil.rmtree(journal.home, ignore_errors=True)
            raise
        journal.home = journal.home.rename(folder / name)
        return journal

    def append(self, event: Event) -> None:
        """Add one event. It survives the death of this process as soon as this returns.

        Raises:
            OSError: when it cannot be written, for example on a full disk; the journal is unchanged.
        """
        line = (json.dumps({"time": int(time.time() * 1000), **event}) + "\n").encode()
        with self._lock:
            append_line(self.events, line)

    @contextmanager
    def adding(self, event: Event, name: str) -> Iterator[Path]:
        """Add an event with a file or folder, which the block writes to the path that it gets.

        Raises:
            OSError: as :meth:`append`; the file is removed.
        """
        folder = self.home / "files" / uuid.uuid4().hex[:12]
        try:
            folder.mkdir(parents=True)
            yield folder / name
            self.append({**event, "file": (folder / name).relative_to(self.home).as_posix()})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def close(self) -> None:
        """Stop being the writer."""
        if self._alive is not None:
            self._alive.close()

    # --- the sender ----------------------------------------------------------------------------------

    def has_writer(self) -> bool:
        """Whether its stage still runs."""
        return is_held(self.home / "alive")

    def end_if_killed(self) -> bool:
        """End a run whose writer was killed as KILLED, at the time of its last event; whether its end was missing.

        Raises:
            DamagedJournal: when its last event cannot be read.
        """
        size, last = 0, b""
        for line in self._lines(0):
            size, last = size + len(line), line
        if not last:
            return False
        os.truncate(self.events, size)  # what the kill left of a line
        event = _event(last, self.events, size - len(last))
        if event["kind"] == "end":
            return False
        self.append({"kind": "end", "status": "KILLED", "time": event["time"]})
        return True

    def waiting(self, offset: int, limit: int = 1000) -> list[tuple[Event, int]]:
        """The next events after ``offset``, each with the offset of its end; a torn last line is no event yet.

        Raises:
            DamagedJournal: when a line is not an event.
        """
        events: list[tuple[Event, int]] = []
        for line in islice(self._lines(offset), limit):
            event = _event(line, self.events, offset)
            offset += len(line)
            events.append((with_present_store(event, self.home.parents[2]), offset))
        return events

    def header(self) -> Event:
        """The first event, which opens the run; empty if the journal is gone."""
        return next((event for event, _ in self.waiting(0, limit=1)), {})

    def size(self) -> int:
        """Bytes of all events; 0 if the journal is gone."""
        return self.events.stat().st_size if self.events.exists() else 0

    def count_waiting(self) -> int:
        """Number of events that the store does not have yet; 0 if a folder is in their place."""
        with suppress(DamagedJournal):
            return sum(1 for _ in self._lines(self.delivered().offset))
        return 0

    def _lines(self, offset: int) -> Iterator[bytes]:
        try:
            with self.events.open("rb") as stream:
                stream.seek(offset)
                yield from (line for line in stream if line.endswith(b"\n"))
        except FileNotFoundError:
            return
        except IsADirectoryError:
            raise DamagedJournal(f"{self.events}: a folder, expected a file of events") from None

    def delivered(self) -> Delivered:
        try:
            values = json.loads((self.home / "delivered.json").read_bytes())
        except FileNotFoundError:
            return Delivered()
        names = {field.name for field in fields(Delivered)}
        return Delivered(**{name: value for name, value in values.items() if name in names})

    def mark(self, delivered: Delivered) -> None:
        write_json(self.home / "delivered.json", asdict(delivered))

    def reject(self, event: Event, reason: str) -> Path:
        """Move an event that the store will never accept, with its file and the reason, to the folder ``refused``."""
        folder = self.home.parent / REJECTED_DIR / self.home.name
        folder.mkdir(parents=True, exist_ok=True)
        append_line(folder / "events.jsonl", (json.dumps({**event, "refused": redacted(reason)}) + "\n").encode())
        name = str(event.get("file") or "")
        if name and (self.home / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(self.home / name, folder / name)
        return folder

    def drop(self, event: Event) -> None:
        """Remove the file of a delivered event."""
        if name := event.get("file"):
            shutil.rmtree((self.home / str(name)).parent, ignore_errors=True)

    def remove(self) -> None:
        """Remove the journal, its events first: a part of it that a kill leaves is not sent again."""
        self.events.unlink(missing_ok=True)
        shutil.rmtree(self.home, ignore_errors=True)


def journals(root: Path) -> list[RunJournal]:
    """All journals on disk, oldest first, those of running stages included."""
    homes = (path for path in (owner_root(root) / FOLDER).glob("[!.]*") if path.is_dir() and path.name != REJECTED_DIR)
    return [RunJournal(path) for path in sorted(homes)]


def _event(line: bytes, path: Path, offset: int) -> Event:
    try:
        event: Event = json.loads(line)
    except ValueError as error:
        raise DamagedJournal(f"{path}, byte {offset}: not an event ({error})") from None
    if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
        raise DamagedJournal(f"{path}, byte {offset}: not an event (expected an object with a key 'kind')")
    return event
