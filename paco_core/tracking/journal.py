"""What a run has to tell, kept on disk until a store has it: an append-only file of JSON lines.

``.paco/tracking/<id>/`` holds ``events.jsonl``, ``files/`` (pictures and artefacts on their way),
``delivered.json`` (how far the store has got) and ``alive``, which is locked while its writer or a
deliverer works on it. The folder goes when all is delivered. What a store refuses for good is kept in
``.paco/tracking/refused/<id>/``.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from paco_core.files import read_json, write_json

FOLDER = Path(".paco") / "tracking"
REFUSED = "refused"

Event = dict[str, Any]


@dataclass
class Delivered:
    """How far a store has got: bytes of ``events.jsonl``, and the run that they went to."""

    offset: int = 0
    run_id: str | None = None
    experiment_id: str | None = None


class Journal:
    """One run's events. The writer appends; one deliverer at a time reads on from where the last one got."""

    def __init__(self, home: Path) -> None:
        self.home, self.events = home, home / "events.jsonl"
        self._lock = threading.Lock()
        self._alive: IO[bytes] | None = None

    @classmethod
    def begin(cls, root: Path) -> Journal:
        """A new journal, owned by this process until :meth:`release`."""
        name = f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:8]}"
        home = root / FOLDER / name
        home.mkdir(parents=True, mode=0o700)
        journal = cls(home)
        journal.own()
        return journal

    def own(self) -> bool:
        """Lock the journal; False when another process works on it."""
        stream = (self.home / "alive").open("ab")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            return False
        self._alive = stream
        return True

    def release(self) -> None:
        """Leave the journal to others; a journal that is delivered to its end is removed."""
        if self.is_done():
            shutil.rmtree(self.home, ignore_errors=True)
        if self._alive is not None:
            self._alive.close()
            self._alive = None

    # --- the writer ----------------------------------------------------------------------------------

    def append(self, event: Event) -> None:
        """Add one event. It survives the death of this process as soon as this returns."""
        line = (json.dumps({"time": int(time.time() * 1000), **event}) + "\n").encode()
        with self._lock, self.events.open("ab", buffering=0) as stream:
            stream.write(line)

    def keep(self, path: Path) -> str:
        """A copy of a file or folder on its way; returns its path inside the journal."""
        target = self.new_file(path.name)
        shutil.copytree(path, target) if path.is_dir() else shutil.copyfile(path, target)
        return target.relative_to(self.home).as_posix()

    def new_file(self, name: str) -> Path:
        """A path in a folder of its own, so that equal names do not meet."""
        folder = self.home / "files" / uuid.uuid4().hex[:12]
        folder.mkdir(parents=True)
        return folder / name

    # --- the deliverer -------------------------------------------------------------------------------

    def delivered(self) -> Delivered:
        path = self.home / "delivered.json"
        return Delivered(**read_json(path)) if path.is_file() else Delivered()

    def mark(self, delivered: Delivered) -> None:
        write_json(self.home / "delivered.json", asdict(delivered))

    def waiting(self, offset: int, limit: int = 1000) -> list[tuple[Event, int]]:
        """The next events behind ``offset``, each with the offset behind it; a torn last line is no event yet."""
        if not self.events.is_file():
            return []
        found: list[tuple[Event, int]] = []
        with self.events.open("rb") as stream:
            stream.seek(offset)
            for line in stream:
                if not line.endswith(b"\n") or len(found) == limit:
                    break
                offset += len(line)
                found.append((json.loads(line), offset))
        return found

    def is_done(self) -> bool:
        """Whether the run's end is delivered."""
        events = self.events
        if not events.is_file() or self.delivered().offset < events.stat().st_size:
            return False
        with events.open("rb") as stream:
            stream.seek(max(0, events.stat().st_size - 4096))
            return b'"kind": "end"' in stream.readlines()[-1]

    def count_waiting(self) -> int:
        """How many events the store does not have yet."""
        offset = self.delivered().offset
        if not self.events.is_file():
            return 0
        with self.events.open("rb") as stream:
            stream.seek(offset)
            return sum(line.endswith(b"\n") for line in stream)

    def refuse(self, event: Event, reason: str) -> Path:
        """Keep an event that the store will never take, with its file and the reason."""
        home = self.home.parent / REFUSED / self.home.name
        home.mkdir(parents=True, exist_ok=True)
        with (home / "events.jsonl").open("a") as stream:
            stream.write(json.dumps({**event, "refused": reason}) + "\n")
        kept = self.home / str(event.get("file") or "")
        if event.get("file") and kept.exists():
            target = home / str(event["file"])
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(kept, target)
        return home

    def drop(self, event: Event) -> None:
        """Remove the file of a delivered event."""
        if name := event.get("file"):
            shutil.rmtree((self.home / str(name)).parent, ignore_errors=True)


def left_over(root: Path) -> Iterator[Journal]:
    """Journals whose writer has gone, oldest first, each owned while it is looked at.

    A writer that was killed told no end: the run then ends KILLED with the last thing that it told.
    """
    folder = root / FOLDER
    for home in sorted(p for p in folder.glob("*") if p.is_dir() and p.name != REFUSED):
        journal = Journal(home)
        if not journal.own():
            continue
        try:
            _end_of_the_killed(journal)
            yield journal
        finally:
            journal.release()


def _end_of_the_killed(journal: Journal) -> None:
    """Cut a torn last line off, and end a run that told no end."""
    if not journal.events.is_file() or not journal.events.stat().st_size:
        shutil.rmtree(journal.home, ignore_errors=True)
        return
    whole, last = 0, b""
    with journal.events.open("rb") as stream:
        for line in stream:
            if line.endswith(b"\n"):
                whole, last = whole + len(line), line
    os.truncate(journal.events, whole)
    if not last:
        shutil.rmtree(journal.home, ignore_errors=True)
        return
    event = json.loads(last)
    if event["kind"] != "end":
        journal.append({"kind": "end", "status": "KILLED", "time": event["time"]})
