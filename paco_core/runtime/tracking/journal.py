"""What a run has logged, kept on disk until a store has it: an append-only file of JSON lines.

``.paco/tracking/<id>/`` holds ``events.jsonl``, ``files/`` (pictures and artefacts on their way), ``delivered.json``
(how far the store has got, and what it did not take), ``reserve`` (the room of the last line, which a full disk would
have no place for), and two files that are locked: ``alive`` while its writer lives, ``delivering`` by the one who
brings it to the store. The folder goes when all is delivered. What a store refuses for good is kept in
``.paco/tracking/refused/<id>/``.
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
from pathlib import Path
from typing import IO, Any

from paco_core.io.file_locks import try_hold
from paco_core.io.files import append_line, write_json
from paco_core.io.project import owner_root
from paco_core.io.secrets import bare, redacted
from paco_core.runtime.tracking.moved import with_present_store

FOLDER = Path(".paco") / "tracking"
REFUSED = "refused"
HIDDEN = "."  # before the name of a folder that is no journal yet
GONE = ".gone-"  # or none any more
RESERVE, RESERVED_BYTES = "reserve", 4096
DROPPED_TAG = "paco.dropped"  # how many events of a run its writer could not write
NOTE_TAG = "mlflow.note.content"  # MLflow shows it as the description of a run or an experiment

Event = dict[str, Any]


class DamagedJournal(ValueError):
    """A line of a journal is no event; the text names the file and the place."""


@dataclass
class Delivered:
    """How far a store has got: bytes of ``events.jsonl``, and the run that they went to.

    Attributes:
        failed: attempts that found no answer, in all.
        outage: in words, why the last one found none; empty once the store answers again.
        refused: events that the store refused for good.
        refusal: in words, the last of them.
    """

    offset: int = 0
    run_id: str | None = None
    experiment_id: str | None = None
    failed: int = 0
    outage: str = ""
    refused: int = 0
    refusal: str = ""


class RunJournal:
    """One run's events. The writer appends; one deliverer at a time reads on from where the last one got."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._lock = threading.Lock()
        self._alive: IO[bytes] | None = None
        self._ended = False

    @property
    def events(self) -> Path:
        return self.home / "events.jsonl"

    @classmethod
    def begin(cls, root: Path, first: Event) -> RunJournal:
        """A new journal with its first event. Its writer is this process until :meth:`leave`.

        Nobody sees it before it is locked and has that event.

        Raises:
            OSError: when it cannot be written; nothing is left of it.
        """
        folder = owner_root(root) / FOLDER
        name = f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:8]}"
        journal = cls(folder / f"{HIDDEN}{name}")
        try:
            journal.home.mkdir(parents=True, mode=0o700)
            journal._alive = try_hold(journal.home / "alive")
            append_line(journal.home / RESERVE, bytes(RESERVED_BYTES))
            journal.append(first)
        except OSError:
            shutil.rmtree(journal.home, ignore_errors=True)
            raise
        journal.home = journal.home.rename(folder / name)
        return journal

    # --- the writer ----------------------------------------------------------------------------------

    def append(self, event: Event) -> None:
        """Add one event. It survives the death of this process as soon as this returns.

        Raises:
            OSError: when it cannot be written, on a full disk say; the journal is as it was.
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
        folder = self.home / "files" / uuid.uuid4().hex[:12]  # its own, so that equal names do not meet
        try:
            folder.mkdir(parents=True)
            yield folder / name
            self.append({**event, "file": (folder / name).relative_to(self.home).as_posix()})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def end(self, status: str, dropped: int = 0) -> None:
        """Add the last event: how the run ended, and how many events its writer could not add.

        Raises:
            OSError: as :meth:`append`, where the room that is kept for it does not do either.
        """
        event = {"kind": "end", "status": status, "dropped": dropped}
        try:
            self.append(event)
        except OSError:
            (self.home / RESERVE).unlink(missing_ok=True)
            self.append(event)
        self._ended = True

    def leave(self) -> None:
        """The writer goes: what is delivered to its end is removed, the rest is left to others."""
        if self._ended and self.delivered().offset >= self.size():
            self.remove()
        if self._alive is not None:
            self._alive.close()
            self._alive = None

    # --- the deliverer -------------------------------------------------------------------------------

    def is_left(self) -> bool:
        """Whether the writer has gone.

        A writer that was killed logged no end: the run then ends KILLED, at the time of its last event.

        Raises:
            FileNotFoundError: when the journal has gone.
            DamagedJournal: when its last event cannot be read.
        """
        stream = try_hold(self.home / "alive")
        if stream is None:
            return False
        with stream:
            _end_of_the_killed(self)
        return True

    def waiting(self, offset: int, limit: int = 1000) -> list[tuple[Event, int]]:
        """The next events behind ``offset``, each with the offset behind it; a torn last line is no event yet.

        Raises:
            DamagedJournal: when a line is no event.
        """
        found: list[tuple[Event, int]] = []
        for line in self._lines(offset):
            event = _event(line, self.events, offset)
            offset += len(line)
            found.append((with_present_store(event, self.home.parents[2]), offset))
            if len(found) == limit:
                break
        return found

    def header(self) -> Event:
        """The first event, which opens the run; empty where the journal has gone."""
        return next((event for event, _ in self.waiting(0, limit=1)), {})

    def store(self) -> str:
        """The URI of its store, as it may be shown."""
        return bare(str(self.header().get("uri", "")))

    def size(self) -> int:
        """Bytes of all events."""
        try:
            return self.events.stat().st_size
        except FileNotFoundError:  # the sender delivered and removed the journal
            return 0

    def count_waiting(self) -> int:
        """How many events the store does not have yet."""
        return sum(1 for _ in self._lines(self.delivered().offset))

    def _lines(self, offset: int) -> Iterator[bytes]:
        with suppress(FileNotFoundError), self.events.open("rb") as stream:
            stream.seek(offset)
            yield from (line for line in stream if line.endswith(b"\n"))

    def delivered(self) -> Delivered:
        path, known = self.home / "delivered.json", {field.name for field in fields(Delivered)}
        try:
            noted = json.loads(path.read_bytes())
        except FileNotFoundError:
            return Delivered()
        return Delivered(**{name: value for name, value in noted.items() if name in known})

    def mark(self, delivered: Delivered) -> None:
        write_json(self.home / "delivered.json", asdict(delivered))

    def refuse(self, event: Event, reason: str) -> Path:
        """Keep an event that the store will never take, with its file and the reason."""
        home = self.home.parent / REFUSED / self.home.name
        home.mkdir(parents=True, exist_ok=True)
        append_line(home / "events.jsonl", (json.dumps({**event, "refused": redacted(reason)}) + "\n").encode())
        name = str(event.get("file") or "")
        if name and (self.home / name).exists():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(self.home / name, home / name)
        return home

    def drop(self, event: Event) -> None:
        """Remove the file of a delivered event."""
        if name := event.get("file"):
            shutil.rmtree((self.home / str(name)).parent, ignore_errors=True)

    def remove(self) -> None:
        """Take the journal away, in one step for all who may look at it."""
        gone = self.home.with_name(f"{GONE}{self.home.name}")
        with suppress(FileNotFoundError):  # another one was faster
            self.home.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def journals(root: Path) -> list[RunJournal]:
    """All that lie on disk, oldest first, those of running stages included."""
    homes = (path for path in (owner_root(root) / FOLDER).glob("*") if path.is_dir())
    return [RunJournal(path) for path in sorted(homes) if path.name != REFUSED and not path.name.startswith(HIDDEN)]


def sweep(root: Path) -> None:
    """Remove what somebody who was killed had taken away."""
    for gone in (owner_root(root) / FOLDER).glob(f"{GONE}*"):
        shutil.rmtree(gone, ignore_errors=True)


def _event(line: bytes, path: Path, offset: int) -> Event:
    try:
        event: Event = json.loads(line)
    except ValueError as error:
        raise DamagedJournal(f"{path}, byte {offset}: not an event ({error})") from None
    return event


def _end_of_the_killed(journal: RunJournal) -> None:
    """Cut a torn last line off, and end a run that logged no end."""
    whole, last = 0, b""
    for line in journal._lines(0):
        whole, last = whole + len(line), line
    if not last:
        journal.remove()
        return
    os.truncate(journal.events, whole)
    event = _event(last, journal.events, whole - len(last))
    if event["kind"] != "end":
        journal.append({"kind": "end", "status": "KILLED", "time": event["time"]})
