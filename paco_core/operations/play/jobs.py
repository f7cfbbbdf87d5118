"""Work that a page asks for: one piece at a time, in order, with progress, and stopped when nobody wants it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from paco_core.io.files import DataError
from paco_core.io.messages import explain_os_error

log = logging.getLogger("paco.play")
MAX_ENDED_JOBS = 40  # ended jobs whose results can still be asked for
WAITING = 8  # jobs that may wait
WAITS, RUNS, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"


class Cancelled(Exception):
    """The job was cancelled while it ran."""


class Full(DataError):
    """Too many jobs wait already."""


class UnknownJob(DataError):
    """There is no such job: it ended long ago, or belongs to an earlier start of the page."""


Work = Callable[["Job"], dict[str, Any]]


@dataclass(eq=False)
class Job:
    """A piece of work: its own thread reports progress here, and learns here that nobody wants it any more."""

    id: str
    state: str = WAITS
    doing: str = ""
    done: int = 0
    total: int = 0  # 0: nobody knows how much there is to do
    result: dict[str, Any] | None = None
    error: str | None = None
    seconds: float | None = None  # it took
    _begun: float = 0.0  # of the present part
    _cancelled: threading.Event = field(default_factory=threading.Event, repr=False)

    def step(self, doing: str, total: int = 0) -> None:
        """Begin a part of the work.

        Args:
            doing: what it does, for people.
            total: how many times :meth:`advance` will count one.

        Raises:
            Cancelled: as :meth:`check`.
        """
        self.check()
        self.doing, self.done, self.total, self._begun = doing, 0, total, time.monotonic()

    def advance(self, count: int = 1) -> None:
        """
        Raises:
            Cancelled: as :meth:`check`.
        """
        self.check()
        self.done += count

    def show(self, result: dict[str, Any]) -> None:
        """What there is so far."""
        self.result = result

    def check(self) -> None:
        """
        Raises:
            Cancelled: when nobody wants the result any more.
        """
        if self._cancelled.is_set():
            raise Cancelled

    def cancel(self) -> None:
        """Have the next :meth:`check` end it."""
        self._cancelled.set()

    def view(self, ahead: int) -> dict[str, Any]:
        """What the page shows; ``ahead`` jobs come before this one."""
        spent = time.monotonic() - self._begun
        left = spent / self.done * (self.total - self.done) if self.state == RUNS and self.done > 0 else None
        return {
            "job": self.id, "state": self.state, "ahead": ahead, "doing": self.doing, "done": self.done,
            "total": self.total, "seconds_left": None if left is None else round(left, 1), "seconds": self.seconds,
            "cancelling": self.state == RUNS and self._cancelled.is_set(), "error": self.error, "result": self.result,
        }  # fmt: skip


class Jobs:
    """One thread that works the jobs off: models are not made for several."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}  # oldest first
        self._lock = threading.RLock()
        self._pool = ThreadPoolExecutor(1, "play")
        self._last: Future[None] | None = None

    def submit(self, work: Work) -> dict[str, Any]:
        """Queue a piece of work; its view.

        Raises:
            Full: when :data:`WAITING` jobs wait.
        """
        with self._lock:
            if len(self._in_state(WAITS)) >= WAITING:
                raise Full(f"{WAITING} requests wait already: wait for one of them, or cancel one")
            for job in self._in_state(DONE, FAILED, CANCELLED)[:-MAX_ENDED_JOBS]:
                del self._jobs[job.id]
            job = Job(secrets.token_hex(8))
            self._jobs[job.id] = job
            self._last = self._pool.submit(self._run, job, work)
        return self.view(job.id)

    def view(self, name: str) -> dict[str, Any]:
        """
        Raises:
            UnknownJob: when there is no such job.
        """
        with self._lock:
            job = self._find(name)
            waiting = self._in_state(WAITS)
            ahead = waiting.index(job) + len(self._in_state(RUNS)) if job in waiting else 0
            return job.view(ahead)

    def cancel(self, name: str) -> dict[str, Any]:
        """Cancel a job: at once where it waits, at its next step where it runs; its view.

        Raises:
            UnknownJob: when there is no such job.
        """
        with self._lock:
            self._cancel(self._find(name))
        return self.view(name)

    def close(self, timeout_s: float) -> bool:
        """Cancel everything; whether the thread has ended within so many seconds."""
        with self._lock:
            for job in self._jobs.values():
                self._cancel(job)
        self._pool.shutdown(wait=False)
        return self._last is None or not wait([self._last], timeout_s).not_done

    def _find(self, name: str) -> Job:
        if name not in self._jobs:
            raise UnknownJob("this request is not known any more; send it again")
        return self._jobs[name]

    def _in_state(self, *states: str) -> list[Job]:
        return [job for job in self._jobs.values() if job.state in states]

    def _cancel(self, job: Job) -> None:
        job.cancel()
        if job.state == WAITS:
            job.state = CANCELLED

    def _run(self, job: Job, work: Work) -> None:
        with self._lock:
            if job.state == CANCELLED:
                return
            job.state = RUNS
        begun, state = time.monotonic(), DONE
        try:
            job.result = work(job)
        except Cancelled:
            state = CANCELLED
        except DataError as error:
            state, job.error = FAILED, str(error)
        except Exception as error:  # the page goes on; the terminal shows where it happened
            message = explain_os_error(error)
            if message is None:
                log.exception("a request of the page failed")
            state, job.error = FAILED, message or f"{type(error).__name__}: {error}"
        with self._lock:
            job.seconds, job.state = round(time.monotonic() - begun, 1), state
