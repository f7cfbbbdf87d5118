"""The one process that sends to MLflow.

The first stage starts it as ``python -m paco_core.runtime.tracking.sender ROOT``. It imports MLflow once,
serves the journals of all stages that run, ends the runs of those that were killed, and goes when nothing has come for
a while. It may be killed at any time: a stage that waits for it starts another one, which reads on from what is
marked as delivered.
"""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paco_core.io.file_locks import try_hold
from paco_core.io.imports import uncollected
from paco_core.io.secrets import bare, redact_tracebacks, redacted
from paco_core.runtime.tracking.delivery import Delivery
from paco_core.runtime.tracking.journal import Journal, journals
from paco_core.runtime.tracking.outbox import Address
from paco_core.runtime.tracking.store import tracking_uri
from paco_core.runtime.tracking.sync import Sent, brief_requests

POLL_S = 0.1
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)  # after the first, second ... attempt that found no answer
IDLE_S = 20.0
IDLE = "PACO_SENDER_IDLE_S"
TAKEOVER_S = 1.0  # for a sender that goes, and for those who look whether one lives


@dataclass
class Parcel:
    """A journal that this sender delivers."""

    journal: Journal
    delivery: Delivery
    left: bool  # its writer has gone
    before: int  # events that waited when it was left
    failures: int = 0
    failed_at: int = -1  # bytes of the journal when the last attempt that found no answer began
    next_attempt: float = 0.0

    def is_due(self) -> bool:
        """Whether to ask the store: not too often while it does not answer, but once more after the run's end."""
        if time.monotonic() >= self.next_attempt:
            return True
        return self.failed_at < self.journal.size() and self.is_over()

    def is_over(self) -> bool:
        """Whether nothing more will be logged."""
        return self.left or self.journal.has_ended()

    def is_hopeless(self) -> bool:
        """Whether nobody waits any more and the store does not take it."""
        return self.left and self.failed_at >= self.journal.size()


class Sender:
    """Delivers the journals of one address, a request or two of each at a time; all of them go to one store.

    Journals that earlier processes left behind are its own where they go to the same store. One that the store does
    not take is asked for once, and again when the next stage comes.
    """

    def __init__(self, address: Address, uri: str) -> None:
        self._address, self._uri = address, uri
        self._parcels: dict[str, Parcel] = {}
        self._resting: dict[str, float] = {}  # names, and when they are looked at again

    def run(self, idle_s: float, is_gone: Callable[[], bool]) -> None:
        """Deliver until nothing has come for ``idle_s`` seconds, or the project ``is_gone``."""
        last = time.monotonic()
        while not is_gone():
            worked = self.round()
            if self._parcels:
                last = time.monotonic()
            elif time.monotonic() - last >= idle_s:
                break
            if not worked:
                time.sleep(POLL_S)
        for parcel in self._parcels.values():
            parcel.journal.free()

    def round(self) -> bool:
        """Deliver a little of each journal; whether there was something."""
        worked, found = False, journals(self._address.root)
        for name in self._parcels.keys() - {journal.home.name for journal in found}:
            self._put_down(self._parcels[name].journal)  # its writer took it away
        for journal in found:
            try:
                parcel = self._parcels.get(journal.home.name) or self._take(journal)
                worked = (parcel is not None and self._attend(parcel)) or worked
            except Exception:  # one that nobody can read, or a full disk: it must not stop the others
                parcel = self._parcels.get(journal.home.name)
                self._put_down(journal)
                if journal.home.exists():  # else its writer took it away in this moment
                    lives = parcel is not None and not parcel.left
                    self._resting[journal.home.name] = time.monotonic() + PAUSES_S[-1] if lives else math.inf
                    print(redacted(traceback.format_exc()), file=sys.stderr, flush=True)
        return worked

    def _take(self, journal: Journal) -> Parcel | None:
        """Take a journal on, where it is this sender's and no other deliverer is at it."""
        name = journal.home.name
        if time.monotonic() < self._resting.get(name, 0.0):
            return None
        header = journal.header() or {}
        ours = header.get("sender") == self._address.key
        if not (ours or header.get("uri") == bare(self._uri)):
            return None
        left = journal.is_left()
        if not (ours or left) or not journal.reserve():
            return None
        if not left:
            self._resting.clear()
        delivery = Delivery(journal, self._uri, lambda line: self._say(journal, line))
        self._parcels[name] = Parcel(journal, delivery, left, journal.count_waiting())
        return self._parcels[name]

    def _attend(self, parcel: Parcel) -> bool:
        journal = parcel.journal
        if not parcel.left and journal.is_left():
            parcel.left, parcel.before = True, journal.count_waiting()
        worked = parcel.is_due() and self._attempt(parcel)
        if parcel.left and journal.is_done():
            journal.remove()
            self._put_down(journal)
            if parcel.before:
                self._say(journal, f"MLflow: {Sent(1, parcel.before, 0, ()).text()}")
        elif parcel.is_hopeless():
            self._put_down(journal)
            self._resting[journal.home.name] = math.inf
        return worked

    def _attempt(self, parcel: Parcel) -> bool:
        """Deliver a little; whether there was something that the store took."""
        size = parcel.journal.size()
        try:
            worked = parcel.delivery.step()
        except Exception as error:
            if parcel.is_over() and parcel.delivery.is_stuck():
                return True  # the store is well: a file is asked for again at once, and set aside after some attempts
            parcel.failures, parcel.failed_at = parcel.failures + 1, size
            parcel.next_attempt = time.monotonic() + PAUSES_S[min(parcel.failures, len(PAUSES_S)) - 1]
            parcel.delivery.note_outage(error, size)
            return False
        if parcel.failures:
            parcel.failures, parcel.failed_at, parcel.next_attempt = 0, -1, 0.0
            self._resting.clear()  # the store answers again
        return worked

    def _put_down(self, journal: Journal) -> None:
        if parcel := self._parcels.pop(journal.home.name, None):
            parcel.journal.free()

    def _say(self, journal: Journal, line: str) -> None:
        """Tell the stage; where it has gone, those that run."""
        mine = self._parcels.get(journal.home.name)
        heard = [mine] if mine is not None and not mine.left else [p for p in self._parcels.values() if not p.left]
        for parcel in heard:
            with suppress(FileNotFoundError):  # it has just gone, too
                parcel.journal.say(line)


def lock(file: Path) -> IO[bytes] | None:
    """The lock of an address, held until it is closed; None when another sender holds it."""
    deadline = time.monotonic() + TAKEOVER_S
    file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    while (held := try_hold(file)) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return held


def is_gone(file: Path, held: IO[bytes]) -> bool:
    """Whether the project, or its folder of senders, was taken away."""
    try:
        return not os.path.samestat(file.stat(), os.fstat(held.fileno()))
    except FileNotFoundError:
        return True


def main(root: Path) -> None:
    redact_tracebacks()
    address, uri = Address.of(root, os.environ), tracking_uri(root)
    held = lock(address.file)
    if held is None:
        return
    with held, brief_requests():
        held.truncate(0)  # what the last one complained about
        held.write(f"process {os.getpid()}\n".encode())
        held.flush()
        with uncollected():
            import mlflow  # noqa: F401  (now, while the stage works)
        sender = Sender(address, uri)
        sender.run(float(os.environ.get(IDLE) or IDLE_S), lambda: is_gone(address.file, held))
        if not is_gone(address.file, held):
            address.file.unlink()  # keys that expire would leave one each; a sender that failed leaves its complaint


if __name__ == "__main__":
    main(Path(sys.argv[1]))
