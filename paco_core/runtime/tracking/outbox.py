"""Outbox: the stage's side of tracking. It starts the sender, and waits for it for a limited time in all."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from paco_core.io.file_locks import is_held
from paco_core.io.project import owner_root
from paco_core.runtime.tracking.journal import Delivered, RunJournal
from paco_core.runtime.tracking.store import URI

LOG = Path(".paco") / "sender.log"  # locked by the project's sender
POLL_S = 0.02
#: Variables that select a store or open it.
KEYS = ("MLFLOW_", "AWS_", "AZURE_", "DATABRICKS_", "GOOGLE_")
RUN = "import sys; from paco_core.runtime.tracking.sender import main; main(*sys.argv[1:])"


def access_digest(uri: str, environment: Mapping[str, str]) -> str:
    """Digest of a store and of the variables that open it; it does not reveal them."""
    variables = {name: value for name, value in environment.items() if name.startswith(KEYS)}
    lines = sorted(f"{name}={value}" for name, value in {**variables, URI: uri}.items())
    return hashlib.sha256("\0".join(lines).encode(errors="surrogateescape")).hexdigest()[:16]


def has_sender(root: Path, access: str) -> bool:
    """Whether the project's sender runs and uses this store with these credentials."""
    log = owner_root(root) / LOG
    return is_held(log) and log.read_text(errors="replace").partition("\n")[0] in ("", access)  # empty: it starts


def start(root: Path, journal: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a sender. It outlives this process and its working directory, and holds none of its pipes."""
    home = owner_root(root).resolve()
    code = str(Path(__file__).parents[3])  # where this paco_core is
    path = os.pathsep.join([code, *filter(None, [environment.get("PYTHONPATH")])])
    with (home / LOG).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", RUN, str(home), journal],
            cwd=home,
            env={**environment, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )


class Outbox:
    """Waits for the delivery of one journal, ``patience_s`` seconds in all."""

    def __init__(self, journal: RunJournal, root: Path, patience_s: float) -> None:
        self.problem = ""  # why no sender runs
        self._journal, self._root, self._patience_s = journal, root, patience_s
        self._environment, self._access = dict(os.environ), journal.header()["access"]
        self._process: subprocess.Popen[bytes] | None = None
        self._closed: Delivered | None = None
        self._ensure_sender()

    def delivered(self) -> Delivered:
        """What the store has; waits for the id of the run, unless the store does not answer."""
        return self._closed or self._wait(lambda done: done.run_id is not None or bool(done.outage))

    def close(self, patience_s: float = math.inf) -> Delivered:
        """Wait until the store has everything, at most ``patience_s``, or until it fails to answer once more."""
        self._patience_s = min(self._patience_s, patience_s)
        failed, size = self._journal.delivered().failed, self._journal.size()
        self._closed = self._wait(lambda done: done.failed > failed or done.offset >= size)
        return self._closed

    def _wait(self, is_over: Callable[[Delivered], bool]) -> Delivered:
        while True:
            done = self._journal.delivered()
            if is_over(done) or self._patience_s <= 0 or not self._ensure_sender():
                return done
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
                self._process = start(self._root, self._journal.home.name, self._environment)
            except OSError as error:  # no memory, no space: the stage continues
                self.problem = f"the sender cannot be started: {error}"
        return not self.problem
