"""The stage's side of tracking: has a sender run, shows what it says, and waits for what it delivers."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from paco_core.io.file_locks import is_held
from paco_core.io.project import owner_root
from paco_core.runtime.tracking.journal import Delivered, RunJournal

FOLDER = Path(".paco") / "senders"
LOOK_S, POLL_S = 0.25, 0.02  # between two looks at a sender; while the stage waits for one
RESTART_S = 2.0  # between two senders of one stage
#: Variables that lead to a store or open it: a sender has one environment, and serves the stages that share it.
KEYS = ("MLFLOW_", "AWS_", "AZURE_", "DATABRICKS_", "GOOGLE_", "REQUESTS_", "SSL_CERT_", "CURL_CA_")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")  # in small or large letters


@dataclass(frozen=True)
class SenderAddress:
    """Which sender serves a project in an environment: the one that holds the lock on :attr:`file`.

    It serves the same code and the same way to the store; ``key`` is a digest of both and shows no value: of the
    sources beside this one, the environment of Python, and the variables of :data:`KEYS` and :data:`PROXIES`. Which
    events of a journal were delivered is noted beside the journal, whoever sends. What Python prints when a sender
    fails lands in the same file.
    """

    root: Path
    key: str

    @classmethod
    def from_environment(cls, root: Path, environment: Mapping[str, str]) -> SenderAddress:
        digest = hashlib.sha256()
        for source in sorted(Path(__file__).parent.glob("*.py")):
            digest.update(source.read_bytes())
        digest.update(sys.prefix.encode())
        for name in sorted(n for n in environment if n.startswith(KEYS) or n.lower() in PROXIES):
            digest.update(b"\0" + os.fsencode(f"{name}={environment[name]}"))
        return cls(owner_root(root).resolve(), digest.hexdigest()[:16])

    @property
    def file(self) -> Path:
        return self.root / FOLDER / f"{self.key}.lock"

    def is_served(self) -> bool:
        """Whether a sender lives."""
        return is_held(self.file)


def start(address: SenderAddress, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a sender that outlives this process and its working directory, and holds none of its pipes."""
    address.file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    code = str(Path(__file__).parents[3])  # where this paco_core lies
    path = os.pathsep.join([code, *filter(None, [environment.get("PYTHONPATH")])])
    with address.file.open("ab") as complaints:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "paco_core.runtime.tracking.daemon", str(address.root)],
            cwd=address.root,
            env={**environment, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            start_new_session=True,
        )


class Outbox:
    """Brings one journal on its way while its stage runs, which waits for it ``patience_s`` seconds in all."""

    def __init__(self, journal: RunJournal, root: Path, say: Callable[[str], None], patience_s: float) -> None:
        self._journal, self._say, self._patience = journal, say, patience_s
        self._environment = dict(os.environ)
        self._address = SenderAddress.from_environment(root, self._environment)
        self._sender: subprocess.Popen[bytes] | None = None
        self._started = -RESTART_S
        self._broken = False
        self._printed = self._known = Delivered()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="outbox", daemon=True)

    def open(self) -> None:
        """Have a sender from now on."""
        self._start_missing()
        self._thread.start()

    def delivered(self) -> Delivered:
        """How far the store has got; waits for the run's id, unless the store did not answer."""
        if self._known.run_id is None and not self._closed.is_set():
            self._wait(lambda: self._known.run_id is not None or bool(self._known.outage))
        return self._known

    def close(self, patience_s: float = math.inf) -> int:
        """Wait until all is delivered, at most ``patience_s``; how many events still wait.

        A store that did not answer is asked once more and not waited for.
        """
        self._patience = min(self._patience, patience_s)
        failed, size = self._journal.delivered().failed, self._journal.size()
        self._wait(lambda: self._known.failed > failed or self._known.offset >= size)
        self._closed.set()
        self._thread.join()
        self._print_news()
        self._known = self._printed
        waiting = self._journal.count_waiting()
        self._journal.leave()
        return waiting

    def _wait(self, is_over: Callable[[], bool]) -> None:
        """Wait for a sender, as long as the patience of this run lasts."""
        while True:
            self._known = self._journal.delivered()
            if is_over() or self._broken or self._patience <= 0:
                return
            began = time.monotonic()
            time.sleep(POLL_S)
            self._patience -= time.monotonic() - began

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_S):
            self._print_news()
            self._start_missing()

    def _print_news(self) -> None:
        """Print what a sender noted since the last look: a refusal, an outage, its end."""
        before, now = self._printed, self._journal.delivered()
        self._printed = now
        if count := now.refused - before.refused:
            self._say(now.refusal if count == 1 else f"{count} refusals, the last: {now.refusal}")
        if now.outage and not before.outage:
            self._say(now.outage)
        elif before.outage and not now.outage:
            self._say(f"MLflow at {self._journal.store()} answers again")

    def _start_missing(self) -> None:
        """Start a sender where none lives: none came yet, the last one was killed, or went just before we came."""
        ended = None if self._sender is None else self._sender.poll()
        if self._broken or (self._sender is not None and ended is None) or self._address.is_served():
            return
        if ended is not None and ended > 0:
            self._do_without(f"the sender process ended with {ended}, see {self._address.file}")
        elif time.monotonic() - self._started >= RESTART_S:
            self._started = time.monotonic()
            try:
                self._sender = start(self._address, self._environment)
            except OSError as error:  # no memory, no space: the stage goes on
                self._do_without(f"the sender process cannot be started ({error})")

    def _do_without(self, reason: str) -> None:
        self._broken = True
        self._say(f"nothing is sent to MLflow: {reason}; figures are kept in {self._journal.home}")
