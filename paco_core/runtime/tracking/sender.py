"""Sender: brings the journals of a project to MLflow, in a process of its own while stages run, or in `paco sync`.

The first stage starts the process. It imports MLflow once, serves the journals of all stages that use the same store
with the same credentials, delivers what stages that were killed left, and exits when nothing has come for a while. A
stage with another store or other credentials starts a second sender, for its own journal. Senders may be killed at any
time: the next one resumes after what is marked as delivered.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paco_core.io.file_locks import try_hold
from paco_core.io.imports import uncollected
from paco_core.io.secrets import bare, redact_tracebacks, redacted
from paco_core.runtime.tracking.delivery import Delivery
from paco_core.runtime.tracking.journal import DamagedJournal, RunJournal, journals
from paco_core.runtime.tracking.outbox import LOG, access_digest, has_sender
from paco_core.runtime.tracking.store import tracking_uri

IDLE, IDLE_S = "PACO_SENDER_IDLE_S", 20.0
POLL_S = 0.1
PAUSE_S, LEFT_PAUSE_S = 2.0, 60.0  # after a failed attempt: for a running stage, for one that ended


class Sender:
    """Delivers journals, one batch of each at a time.

    Args:
        uri: the store, with its credentials.
        say: prints the problems of journals whose stage has ended.
        access: :func:`access_digest` of the running stages to serve; None = deliver only what stages left.
        only: the name of the only journal to deliver; None = all.
    """

    def __init__(
        self, root: Path, uri: str, say: Callable[[str], None], access: str | None = None, only: str | None = None
    ) -> None:
        self._root, self._uri, self._say, self._access, self._only = root, uri, say, access, only
        self._retry_at: dict[str, float] = {}
        self._live: set[str] = set()  # journals of running stages
        self.sent: Counter[str] = Counter()  # journal -> number of delivered events

    def run(self, idle_s: float, is_over: Callable[[], bool]) -> None:
        """Deliver until nothing has come for ``idle_s`` seconds, or until ``is_over``."""
        last = time.monotonic()
        while not is_over():
            worked = self.round()
            if worked or self._live:
                last = time.monotonic()
            elif time.monotonic() - last >= idle_s:
                break
            if not worked:
                time.sleep(POLL_S)

    def round(self) -> bool:
        """Deliver one batch of each journal; whether a store accepted something."""
        worked, present = False, journals(self._root)
        self._live &= {journal.home.name for journal in present}
        for journal in present:
            name = journal.home.name
            if time.monotonic() < self._retry_at.get(name, 0.0) or self._only not in (None, name):
                continue
            try:
                worked = self._attend(journal) or worked
            except Exception as error:  # an unreadable journal, or a full disk: it must not stop the others
                self._live.discard(name)
                self._retry_at[name] = time.monotonic() + (PAUSE_S if journal.has_writer() else LEFT_PAUSE_S)
                if journal.home.exists():  # otherwise its writer has just removed it
                    self._say(_problem(error))
        return worked

    def _attend(self, journal: RunJournal) -> bool:
        """Deliver one batch of a journal, if this sender serves it and no other one does at the moment."""
        name, header, is_live = journal.home.name, journal.header(), journal.has_writer()
        if is_live:
            serves = self._access is not None and header.get("access") == self._access
        else:
            serves = self._access is None or header.get("uri") == bare(self._uri)
            self._live.discard(name)
        lock = try_hold(journal.home / "delivering") if serves else None
        if lock is None:
            return False
        with lock:
            if is_live and name not in self._live:
                self._live.add(name)
                self._retry_at.clear()  # a new stage
            return self._deliver(Delivery(journal, self._uri), is_live)

    def _deliver(self, delivery: Delivery, is_live: bool) -> bool:
        journal, refused = delivery.journal, delivery.done.refused
        name, is_new = journal.home.name, delivery.done.run_id is None
        try:
            self.sent[name] += (count := delivery.step())
        except DamagedJournal:
            raise
        except Exception as error:
            delivery.note_outage(error)
            self._retry_at[name] = time.monotonic() + (PAUSE_S if is_live else LEFT_PAUSE_S)
            if not is_live:
                self._say(f"MLflow does not accept the run in {journal.home} now ({delivery.done.outage})")
            return False
        if is_live and is_new and delivery.done.run_id:
            self._monitor(delivery.done.run_id)
        if not is_live and delivery.done.refused > refused:
            self._say(delivery.done.refusal)
        if not is_live and not count:
            if journal.end_if_killed():
                return True
            journal.remove()
        return count > 0

    def _monitor(self, run_id: str) -> None:
        """Let MLflow's own monitor log the load of this machine, until the run ends or a request fails."""
        if os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true").lower() in ("true", "1"):
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            SystemMetricsMonitor(run_id, tracking_uri=self._uri).start()


def _problem(error: Exception) -> str:
    if isinstance(error, DamagedJournal):
        return f"{error}; it is kept and does not block the others: fix the line or remove the folder"
    return redacted("".join(traceback.format_exception(error)))


@dataclass(frozen=True)
class Sent:
    """The result of `paco sync`."""

    runs: int
    events: int
    waiting: int
    problems: tuple[str, ...]

    def text(self) -> str:
        lines = [f"{self.runs} runs brought up to date ({self.events} events), {self.waiting} events wait"]
        return "\n".join([*lines, *self.problems])


def unsent(root: Path) -> int:
    """Number of journals on disk, those of running stages included; it needs no store."""
    return len(journals(root))


def send_left_over(root: Path, patience_s: float = 60.0) -> Sent:
    """Deliver every journal whose stage has ended. A store that does not answer is tried once per journal.

    A journal that another sender delivers at the moment is left to it, and counted as waiting.
    """
    deadline = time.monotonic() + patience_s
    problems: list[str] = []
    sender = Sender(root, tracking_uri(root), problems.append)
    while sender.round() and time.monotonic() < deadline:
        pass
    waiting = sum(journal.count_waiting() for journal in journals(root) if not journal.has_writer())
    counts = [count for count in sender.sent.values() if count]
    return Sent(len(counts), sum(counts), waiting, tuple(problems))


def log_error(line: str) -> None:
    """Print to the sender's log, where Python's own errors are, too."""
    print(line, file=sys.stderr, flush=True)


def serve(root: Path, journal: str, idle_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
    """Serve a project until nothing has come for ``idle_s`` seconds, ``is_over``, or somebody removed the project.

    If another sender is there and uses another store or other credentials, deliver only the journal of this name.
    """
    uri, log = tracking_uri(root), root / LOG
    access = access_digest(uri, os.environ)
    lock = try_hold(log)
    if lock is None and has_sender(root, access):
        return
    if lock is not None:
        with suppress(OSError):  # a full disk
            os.ftruncate(lock.fileno(), 0)
            os.write(lock.fileno(), f"{access}\nprocess {os.getpid()}\n".encode())
    with uncollected():
        import mlflow  # noqa: F401  (now, while the stage works)
    sender = Sender(root, uri, log_error, access, None if lock else journal)
    sender.run(idle_s if lock else 0.0, lambda: is_over() or not log.exists())
    if lock is not None:
        lock.close()


def main(root: str, journal: str) -> None:
    """The process of a sender."""
    redact_tracebacks()
    serve(Path(root), journal, float(os.environ.get(IDLE) or IDLE_S))
