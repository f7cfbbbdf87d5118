"""Sender: brings the journals of a project to MLflow, in a separate process while stages run, or in `paco sync`.

The first stage starts the process. It imports MLflow once, serves the journals of all stages that use its store with
its credentials, delivers what killed stages left, and exits when nothing has come for a while. A stage with another
store or other credentials starts a second process. A sender may be killed at any time: the next one resumes after what
is marked as delivered.
"""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dvc_project.file_locks import is_held, try_hold
from paco_core.io.project import owner_root
from paco_core.io.secrets import bare, redact_tracebacks, redacted
from paco_core.runtime.tracking.delivery import Delivery
from paco_core.runtime.tracking.journal import DamagedJournal, Delivered, RunJournal, journals
from paco_core.runtime.tracking.store import URI, tracking_uri

LOG = Path(".paco") / "sender.log"  # locked by the project's sender; its first line is the digest of its access
IDLE, IDLE_S = "PACO_SENDER_IDLE_S", 20.0
POLL_S = 0.05
PAUSE_S = 2.0  # after a failed attempt
#: Variables that select a store or open it.
KEYS = ("MLFLOW_", "AWS_", "AZURE_", "DATABRICKS_", "GOOGLE_")
RUN = "import sys; from paco_core.runtime.tracking.sender import main; main(sys.argv[1])"


def access_digest(uri: str, environment: Mapping[str, str]) -> str:
    """Digest of a store and of the variables that open it; it does not reveal them."""
    variables = {name: value for name, value in environment.items() if name.startswith(KEYS)}
    lines = sorted(f"{name}={value}" for name, value in {**variables, URI: uri}.items())
    return hashlib.sha256("\0".join(lines).encode(errors="surrogateescape")).hexdigest()[:16]


# --- the process -------------------------------------------------------------------------------------


class Sender:
    """Delivers journals, one batch of each at a time.

    Args:
        access: :func:`access_digest` of the running stages to serve; None = only journals whose stage has ended.
    """

    def __init__(self, root: Path, access: str | None = None) -> None:
        self._root, self._uri, self._access = root, tracking_uri(root), access
        self._retry_at: dict[str, float] = {}
        self.serves_stage = False  # whether a stage that it serves was running in the last round
        self.num_delivered: Counter[str] = Counter()  # journal -> number of delivered events
        self.problems: dict[str, str] = {}  # journal whose stage has ended -> its last problem

    def round(self) -> int:
        """Deliver one batch of each journal; the number of events that a store accepted."""
        self.serves_stage, before = False, self.num_delivered.total()
        for journal in journals(self._root):
            name = journal.home.name
            try:
                is_live, header = journal.has_writer(), journal.header()
                if not self._serves(header, is_live):
                    continue
                self.serves_stage |= is_live
                if time.monotonic() >= self._retry_at.get(name, 0.0):
                    self._deliver(journal, is_live)
            except Exception as error:  # an unreadable journal, or a full disk: it must not stop the others  # noqa: BLE001
                self._retry_at[name] = time.monotonic() + PAUSE_S
                if journal.home.exists():  # otherwise its writer has just removed it
                    self._note(journal, _problem(error))
        return self.num_delivered.total() - before

    def _serves(self, header: Mapping[str, object], is_live: bool) -> bool:
        if self._access is None:
            return not is_live
        return header.get("access") == self._access if is_live else header.get("uri") == bare(self._uri)

    def _deliver(self, journal: RunJournal, is_live: bool) -> None:
        """Deliver one batch of a journal, unless another sender does so at the moment."""
        lock = try_hold(journal.home / "delivering")
        if lock is None:
            return
        with lock:
            delivery, name = Delivery(journal, self._uri), journal.home.name
            is_new, refused_before = delivery.progress.run_id is None, delivery.progress.refused
            try:
                count = delivery.step()
                if not (count or is_live) and journal.end_if_killed():
                    count = delivery.step()
            except DamagedJournal:
                raise
            except Exception as error:  # MLflow raises many types, and the journal keeps all  # noqa: BLE001
                delivery.note_outage(error)
                self._retry_at[name] = time.monotonic() + PAUSE_S
                if not is_live:
                    self._note(
                        journal, f"MLflow does not accept the run in {journal.home} now ({delivery.progress.outage})"
                    )
                return
            self.num_delivered[name] += count
            if is_live and is_new and delivery.progress.run_id:
                self._monitor(delivery.progress.run_id)
            if not is_live:
                if delivery.progress.refused > refused_before:
                    self._note(journal, delivery.progress.refusal)
                if not count:
                    journal.remove()

    def _monitor(self, run_id: str) -> None:
        """Let MLflow's own monitor log the load of this machine, until the run ends or a request fails."""
        if os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true").lower() in ("true", "1"):
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            SystemMetricsMonitor(run_id, tracking_uri=self._uri).start()

    def _note(self, journal: RunJournal, problem: str) -> None:
        """Record a problem, and print it to the log of a process, each once."""
        if self.problems.get(journal.home.name) != problem:
            self.problems[journal.home.name] = problem
            if self._access is not None:
                print(problem, file=sys.stderr, flush=True)


def _problem(error: Exception) -> str:
    if isinstance(error, DamagedJournal):
        return f"{error}; it is kept and does not block the others: fix the line or remove the folder"
    return redacted("".join(traceback.format_exception(error)))


def serve_journals(root: Path, idle_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
    """Serve a project until nothing has come for ``idle_s`` seconds, ``is_over``, or somebody removed the project.

    If another sender is there and uses another store or other credentials, exit as soon as nothing is left to deliver.
    """
    log, access = root / LOG, access_digest(tracking_uri(root), os.environ)
    lock = try_hold(log)
    if lock is None and has_sender(root, access):
        return
    if lock is not None:
        with suppress(OSError):  # a full disk
            os.ftruncate(lock.fileno(), 0)
            os.write(lock.fileno(), f"{access}\nprocess {os.getpid()}\n".encode())
    import mlflow  # noqa: F401  (now, while the stage works)

    sender, last = Sender(root, access), time.monotonic()
    while log.exists() and not is_over():
        count = sender.round()
        if count or sender.serves_stage:
            last = time.monotonic()
        elif lock is None or time.monotonic() - last >= idle_s:
            break
        if not count:
            time.sleep(POLL_S)
    if lock is not None:
        lock.close()


def main(root: str) -> None:
    """The process of a sender."""
    redact_tracebacks()
    serve_journals(Path(root), float(os.environ.get(IDLE) or IDLE_S))


# --- the stage ---------------------------------------------------------------------------------------


def has_sender(root: Path, access: str) -> bool:
    """Whether the project's sender runs and uses this store with these credentials."""
    log = owner_root(root) / LOG
    return is_held(log) and log.read_text(errors="replace").partition("\n")[0] in ("", access)  # empty: it starts


def start(root: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a sender. It outlives this process and its working directory, and holds none of its pipes."""
    home = owner_root(root).resolve()
    code = str(Path(__file__).parents[3])  # where this paco_core is
    path = os.pathsep.join([code, *filter(None, [environment.get("PYTHONPATH")])])
    with (home / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", RUN, str(home)],
            cwd=home,
            env={**environment, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )


class Outbox:
    """A stage's wait for the delivery of its journal, ``patience_s`` seconds in all; it starts a sender if none is."""

    def __init__(self, journal: RunJournal, root: Path, patience_s: float) -> None:
        self.problem = ""  # why no sender runs
        self._journal, self._root, self._patience_s = journal, root, patience_s
        self._environment, self._access = dict(os.environ), journal.header()["access"]
        self._process: subprocess.Popen[bytes] | None = None
        self._closed: Delivered | None = None
        self._ensure_sender()

    def delivered(self) -> Delivered:
        """What the store has; waits for the id of the run, unless the store does not answer."""
        return self._closed or self._wait(lambda progress: progress.run_id is not None or bool(progress.outage))

    def close(self, patience_s: float = math.inf) -> Delivered:
        """Wait until the store has everything, at most ``patience_s``, or until it fails to answer once more."""
        self._patience_s = min(self._patience_s, patience_s)
        failed, size = self._journal.delivered().failed, self._journal.size()
        self._closed = self._wait(lambda progress: progress.failed > failed or progress.offset >= size)
        return self._closed

    def _wait(self, is_over: Callable[[Delivered], bool]) -> Delivered:
        while True:
            progress = self._journal.delivered()
            if is_over(progress) or self._patience_s <= 0 or not self._ensure_sender():
                return progress
            began = time.monotonic()
            time.sleep(POLL_S)
            self._patience_s -= time.monotonic() - began

    def _ensure_sender(self) -> bool:
        """Start a sender if none serves this journal: none was there, or it was killed; False if none can run."""
        code = self._process.poll() if self._process else 0  # None: it runs
        if code is not None and code > 0:
            self.problem = f"the sender ended with {code}, see {owner_root(self._root) / LOG}"
        elif code is not None and not self.problem and not has_sender(self._root, self._access):
            try:
                self._process = start(self._root, self._environment)
            except OSError as error:  # no memory, no space: the stage continues
                self.problem = f"the sender cannot be started: {error}"
        return not self.problem


# --- paco sync ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SyncResult:
    """The result of `paco sync`."""

    runs: int
    events: int
    waiting: int
    problems: tuple[str, ...]

    def text(self) -> str:
        lines = [f"{self.runs} runs brought up to date ({self.events} events), {self.waiting} events wait"]
        return "\n".join([*lines, *self.problems])


def count_journals(root: Path) -> int:
    """Number of journals on disk, those of running stages included; it needs no store."""
    return len(journals(root))


def send_left_over(root: Path, patience_s: float = 60.0) -> SyncResult:
    """Deliver every journal whose stage has ended, until the stores accept nothing more.

    A journal that another sender delivers at the moment is left to it, and counted as waiting.
    """
    deadline = time.monotonic() + patience_s
    sender = Sender(root)
    while sender.round() and time.monotonic() < deadline:
        pass
    waiting = sum(journal.count_waiting() for journal in journals(root) if not journal.has_writer())
    runs = sum(count > 0 for count in sender.num_delivered.values())
    return SyncResult(runs, sender.num_delivered.total(), waiting, tuple(sender.problems.values()))
