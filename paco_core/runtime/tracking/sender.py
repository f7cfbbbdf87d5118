"""Brings the journals of a project to MLflow: in a process of its own while stages run, else in `paco sync`."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paco_core.io.file_locks import try_hold
from paco_core.io.secrets import bare, redacted
from paco_core.runtime.tracking.delivery import Delivery
from paco_core.runtime.tracking.journal import DamagedJournal, RunJournal, journals, sweep
from paco_core.runtime.tracking.store import tracking_uri

POLL_S = 0.1
PAUSE_S, LONG_PAUSE_S = 2.0, 60.0  # after an attempt that failed, for a running stage; for what was left


class Sender:
    """Delivers the journals of a project, a request or two of each at a time.

    Those of running stages where it serves them, and those that earlier processes left behind: of the latter one that
    the store does not take is tried again a minute later, when the next stage comes, or when the store answers again.

    Args:
        uri: the store, with its credentials.
        say: called with what people should know of the journals whose writer has gone.
        key: of its address; without one it sends only what was left, to whichever store.
    """

    def __init__(self, root: Path, uri: str, say: Callable[[str], None], key: str | None = None) -> None:
        self._root, self._uri, self._say, self._key = root, uri, say, key
        self._at: dict[str, tuple[Delivery, IO[bytes]]] = {}  # by name of the journal, with its lock
        self._later: dict[str, float] = {}  # names of journals, and when they are tried again

    def run(self, idle_s: float, is_gone: Callable[[], bool]) -> None:
        """Deliver until nothing has come for ``idle_s`` seconds, or the project ``is_gone``."""
        last = time.monotonic()
        while not is_gone():
            worked = self.round()
            if self._at:
                last = time.monotonic()
            elif time.monotonic() - last >= idle_s:
                break
            if not worked:
                time.sleep(POLL_S)
        self.free()

    def free(self) -> None:
        """Leave what is not delivered to others."""
        for name in [*self._at]:
            self._release(name)

    def round(self) -> bool:
        """Deliver a little of each journal; whether a store took something."""
        worked, found = False, journals(self._root)
        for name in self._at.keys() - {journal.home.name for journal in found}:
            self._release(name)  # its writer took it away
        for journal in found:
            try:
                worked = self._attend(journal) or worked
            except Exception as error:  # one that nobody can read, or a full disk: it must not stop the others
                self._release(journal.home.name, LONG_PAUSE_S)
                if journal.home.exists():  # else its writer took it away in this moment
                    self._say(_problem(error))
        return worked

    def _attend(self, journal: RunJournal) -> bool:
        """Deliver a little of one journal; whether its store took something."""
        name = journal.home.name
        if time.monotonic() < self._later.get(name, 0.0) or not (name in self._at or self._take(journal)):
            return False
        return self._deliver(self._at[name][0], journal.is_left())

    def _take(self, journal: RunJournal) -> bool:
        """Take a journal on, where it is this sender's and no other one is at it."""
        header = journal.header()
        serves = self._key is not None and header.get("sender") == self._key
        if not (serves or self._key is None or header.get("uri") == bare(self._uri)):
            return False
        left = journal.is_left()
        held = try_hold(journal.home / "delivering") if serves or left else None
        if held is None:
            return False
        if not left:
            self._later.clear()  # the next stage has come
        self._at[journal.home.name] = Delivery(journal, self._uri), held
        return True

    def _deliver(self, delivery: Delivery, left: bool) -> bool:
        name, outage, refused = delivery.journal.home.name, delivery.done.outage, delivery.done.refused
        try:
            worked = delivery.step()
        except DamagedJournal:
            raise
        except Exception as error:
            delivery.note_outage(error)
            if left:
                self._say(delivery.done.outage)
                self._release(name, LONG_PAUSE_S)
            else:
                self._later[name] = time.monotonic() + PAUSE_S
            return False
        if left and delivery.done.refused > refused:
            self._say(delivery.done.refusal)
        if outage and worked:
            self._later.clear()  # the store answers again
        if left and not worked:
            delivery.journal.remove()
            self._release(name)
        return worked

    def _release(self, name: str, pause_s: float = 0.0) -> None:
        if name in self._at:
            self._at.pop(name)[1].close()
        self._later[name] = time.monotonic() + pause_s


def _problem(error: Exception) -> str:
    if isinstance(error, DamagedJournal):
        return f"{error}; it is kept and does not block the others: fix the line or remove the folder"
    return redacted("".join(traceback.format_exception(error)))


@dataclass(frozen=True)
class Sent:
    """What became of journals that earlier processes left behind."""

    runs: int
    events: int
    waiting: int
    problems: tuple[str, ...]

    def text(self) -> str:
        lines = [f"{self.runs} runs brought up to date ({self.events} events), {self.waiting} events wait"]
        return "\n".join([*lines, *self.problems])


def unsent(root: Path) -> int:
    """How many journals lie on disk, those of running stages included; asks nobody."""
    return len(journals(root))


def send_left_over(root: Path, patience_s: float = 60.0) -> Sent:
    """Deliver at once every journal whose writer has gone; a store that does not answer is asked once each.

    What another sender is at is left to it and counted as waiting.
    """
    deadline = time.monotonic() + patience_s
    sweep(root)
    left: dict[Path, int] = {}
    for journal in journals(root):
        with suppress(FileNotFoundError, DamagedJournal):  # another sender was faster; the sender below reports it
            if journal.is_left():
                left[journal.home] = journal.count_waiting()
    problems: list[str] = []
    sender = Sender(root, tracking_uri(root), problems.append)
    while sender.round() and time.monotonic() < deadline:
        pass
    sender.free()
    sent = [before - RunJournal(home).count_waiting() for home, before in left.items()]
    runs, events = sum(count > 0 for count in sent), sum(sent)
    return Sent(runs, events, sum(left.values()) - events, tuple(problems))
