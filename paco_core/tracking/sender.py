"""Sends a journal in the background: the training writes to disk and goes on, whatever the store does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paco_core.tracking.delivery import Delivery
from paco_core.tracking.journal import FOLDER, REFUSED, Journal, left_over
from paco_core.tracking.store import without_secrets

POLL_S = 0.25
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)
START_S = 10.0  # a run waits this long for its id, unless the store refuses at once
#: MLflow asks seven times over minutes by itself; here the journal does the waiting.
HTTP = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


@contextmanager
def brief_requests() -> Iterator[None]:
    """Requests that give up soon, unless the environment says how long to try."""
    ours = {name: value for name, value in HTTP.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


class Sender:
    """A thread that brings one journal to the store, then what earlier processes left behind."""

    def __init__(self, journal: Journal, uri: str, root: Path, say: Callable[[str], None]) -> None:
        self.journal, self._uri, self._root, self._say = journal, uri, root, say
        self.delivery = Delivery(journal)
        self.tried = threading.Event()
        self._closing, self._stop, self._wake = threading.Event(), threading.Event(), threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="mlflow-sender", daemon=True)

    def start(self) -> None:
        """Begin; returns when the run has its id, or the store did not give one in time."""
        self._thread.start()
        self.tried.wait(START_S)

    def close(self, patience_s: float) -> int:
        """Wait until all is delivered, at most ``patience_s``; how many events still wait.

        A store that did not answer is asked once more and not waited for.
        """
        self._closing.set()
        self._wake.set()
        self._thread.join(patience_s)
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(POLL_S)
        return self.journal.count_waiting() if self.journal.home.exists() else 0

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                asked_to_close = self._closing.is_set()
                worked = self._attempt()
                if asked_to_close and (worked is None or not worked):
                    break
                if worked is None:
                    self._wake.wait(PAUSES_S[min(self._failures, len(PAUSES_S)) - 1])
                elif not worked:
                    self._wake.wait(POLL_S)
                if not self._closing.is_set():
                    self._wake.clear()
        finally:
            self.tried.set()
            self.journal.release()

    def _attempt(self) -> bool | None:
        """Deliver a little; whether there was something, None when the store did not take it."""
        try:
            worked = self.delivery.step()
        except Exception as error:
            self._failures += 1
            if self._failures == 1:
                self._say(
                    f"MLflow at {without_secrets(self._uri)} does not take figures now ({_short(error)}); "
                    f"they are kept in {self.journal.home} and sent later"
                )
            self.tried.set()
            return None
        for line in self.delivery.refused:
            self._say(line)
        self.delivery.refused.clear()
        if self._failures:
            self._say(f"MLflow at {without_secrets(self._uri)} answers again")
            self._failures = 0
        if self.delivery.done.run_id is not None:
            self.tried.set()
        return worked


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


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
    return sum(p.is_dir() and p.name != REFUSED for p in (root / FOLDER).glob("*"))


def send_left_over(root: Path, patience_s: float = 60.0) -> Sent:
    """Deliver every journal whose writer has gone; a store that does not answer is asked once each."""
    runs = events = waiting = 0
    problems: list[str] = []
    deadline = time.monotonic() + patience_s
    with brief_requests():
        for journal in left_over(root):
            delivery, before = Delivery(journal), journal.count_waiting()
            if error := _deliver_all(delivery, deadline):
                uri = without_secrets(str(journal.waiting(0, limit=1)[0][0].get("uri", "")))
                problems.append(f"{journal.home.name}: MLflow at {uri} does not take it ({_short(error)})")
            problems += delivery.refused
            after = journal.count_waiting()
            runs, events, waiting = runs + (after < before), events + before - after, waiting + after
    return Sent(runs, events, waiting, tuple(problems))


def _deliver_all(delivery: Delivery, deadline: float) -> Exception | None:
    """Deliver until nothing waits; what the store does not answer, or answers too late.

    A file that a store in good health does not take is asked again at once, and set aside by the delivery after some
    attempts: each process that comes by would else ask once, and the run would never end.
    """
    while time.monotonic() < deadline:
        try:
            if not delivery.step():
                break
        except Exception as error:
            if not delivery.is_stuck():
                return error
    return None
