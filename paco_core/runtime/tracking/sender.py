"""Brings the journals of a project to MLflow: in a process of its own while stages run, else in `paco sync`."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paco_core.io.secrets import bare, redacted
from paco_core.runtime.tracking.delivery import PAUSES_S, Delivery
from paco_core.runtime.tracking.journal import DamagedJournal, RunJournal, journals, sweep
from paco_core.runtime.tracking.store import brief_requests, tracking_uri

POLL_S = 0.1


class Sender:
    """Delivers the journals of a project, a request or two of each at a time.

    Those of running stages where it serves them, and those that earlier processes left behind: of the latter one that
    the store does not take is tried once, and again when the next stage comes or the store answers again.

    Args:
        uri: the store, with its credentials.
        say: called with what people should know of the journals whose writer has gone.
        key: of its address; without one it sends only what was left, to whichever store.
    """

    def __init__(self, root: Path, uri: str, say: Callable[[str], None], key: str | None = None) -> None:
        self._root, self._uri, self._say, self._key = root, uri, say, key
        self._deliveries: dict[str, Delivery] = {}
        self._later: dict[str, float] = {}  # names of journals, and when they are tried again

    def run(self, idle_s: float, is_gone: Callable[[], bool]) -> None:
        """Deliver until nothing has come for ``idle_s`` seconds, or the project ``is_gone``."""
        last = time.monotonic()
        while not is_gone():
            worked = self.round()
            if self._deliveries:
                last = time.monotonic()
            elif time.monotonic() - last >= idle_s:
                break
            if not worked:
                time.sleep(POLL_S)
        self.free()

    def free(self) -> None:
        """Leave what is not delivered to others."""
        for delivery in self._deliveries.values():
            delivery.journal.free()

    def round(self) -> bool:
        """Deliver a little of each journal; whether the store took something."""
        worked, found = False, journals(self._root)
        for name in self._deliveries.keys() - {journal.home.name for journal in found}:
            self._release(self._deliveries[name].journal)  # its writer took it away
        for journal in found:
            name = journal.home.name
            try:
                delivery = self._deliveries.get(name) or self._take(journal)
                worked = (delivery is not None and self._attend(delivery)) or worked
            except Exception as error:  # one that nobody can read, or a full disk: it must not stop the others
                lives = name in self._deliveries and not self._deliveries[name].left
                self._release(journal, time.monotonic() + PAUSES_S[-1] if lives else math.inf)
                if journal.home.exists():  # else its writer took it away in this moment
                    self._say(_problem(error))
        return worked

    def _take(self, journal: RunJournal) -> Delivery | None:
        """Take a journal on, where it is this sender's and no other one is at it."""
        name = journal.home.name
        if time.monotonic() < self._later.get(name, 0.0):
            return None
        header = journal.header() or {}
        ours = self._key is not None and header.get("sender") == self._key
        if not (ours or self._key is None or header.get("uri") == bare(self._uri)):
            return None
        left = journal.is_left()
        if not (ours or left) or not journal.reserve():
            return None
        if not left:
            self._later.clear()
        self._deliveries[name] = Delivery(journal, self._uri, self._say, left=left)
        return self._deliveries[name]

    def _attend(self, delivery: Delivery) -> bool:
        journal, failures = delivery.journal, delivery.failures
        delivery.left = delivery.left or journal.is_left()
        worked = delivery.attempt()
        if failures and not delivery.failures:
            self._later.clear()  # the store answers again
        if delivery.left and journal.is_done():
            journal.remove()
            self._release(journal)
        elif delivery.left and delivery.failures:
            self._release(journal, math.inf)
        return worked

    def _release(self, journal: RunJournal, until: float = 0.0) -> None:
        if delivery := self._deliveries.pop(journal.home.name, None):
            delivery.journal.free()
        journal.free()
        self._later[journal.home.name] = until


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
    with brief_requests():
        while sender.round() and time.monotonic() < deadline:
            pass
    sender.free()
    sent = [before - RunJournal(home).count_waiting() for home, before in left.items()]
    runs, events = sum(count > 0 for count in sent), sum(sent)
    return Sent(runs, events, sum(left.values()) - events, tuple(problems))
