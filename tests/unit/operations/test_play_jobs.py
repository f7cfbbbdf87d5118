"""The queue behind `paco play`: order, progress, cancelling, failures, and what is kept."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paco_core.io.files import DataError
from paco_core.operations.play import jobs as queue
from paco_core.operations.play.jobs import Full, Job, Jobs, UnknownJob
from tests.support.waiting import until

PATIENCE_S = 60.0


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs()
    yield made
    assert made.close(PATIENCE_S), "the thread has ended"


class Gate:
    """Work that says when it has begun, and goes on step by step when it may."""

    def __init__(self, steps: int = 1) -> None:
        self.steps, self.begun, self.may = steps, threading.Event(), threading.Semaphore(0)

    def __call__(self, job: Job) -> dict[str, Any]:
        job.step("painting", self.steps)
        self.begun.set()
        for step in range(self.steps):
            assert self.may.acquire(timeout=PATIENCE_S)
            job.advance()
            job.show({"done": step + 1})
        return {"done": self.steps}

    def wait(self) -> None:
        assert self.begun.wait(PATIENCE_S)


def ended(jobs: Jobs, name: str) -> dict[str, Any]:
    """The view of a job once it has ended."""
    until(lambda: jobs.view(name)["state"] not in ("waiting", "running"))
    return jobs.view(name)


def test_jobs_are_done_in_order_one_at_a_time_and_say_how_many_come_first(jobs: Jobs) -> None:
    order: list[int] = []
    gate = Gate()
    first = jobs.submit(gate)["job"]
    gate.wait()

    def note(number: int) -> Callable[[Job], dict[str, Any]]:
        return lambda _job: order.append(number) or {"number": number}  # type: ignore[func-returns-value]

    others = [jobs.submit(note(number)) for number in range(3)]
    assert [view["state"] for view in others] == ["waiting"] * 3 and [view["ahead"] for view in others] == [1, 2, 3]
    assert jobs.view(first)["state"] == "running" and order == []
    gate.may.release()
    assert ended(jobs, others[-1]["job"])["state"] == "done" == jobs.view(first)["state"] and order == [0, 1, 2]
    assert [jobs.view(view["job"])["result"] for view in others] == [{"number": number} for number in range(3)]
    assert len({view["job"] for view in others} | {first}) == 4


def test_progress_and_what_there_is_so_far(jobs: Jobs) -> None:
    gate = Gate(steps=3)
    name = jobs.submit(gate)["job"]
    gate.wait()
    begun = jobs.view(name)
    assert (begun["doing"], begun["done"], begun["total"], begun["seconds_left"]) == ("painting", 0, 3, None)
    reached, seen = threading.Event(), []

    def watch(job: Job) -> dict[str, Any]:
        job.step("a", 2)
        job.advance()
        job.show({"first": True})
        seen.append(jobs.view(job.id))
        reached.set()
        return {"first": True, "second": True}

    second = jobs.submit(watch)["job"]
    for _ in range(3):
        gate.may.release()
    assert reached.wait(PATIENCE_S)
    assert seen[0]["result"] == {"first": True} and seen[0]["done"] == 1 and seen[0]["seconds_left"] >= 0
    assert ended(jobs, second)["result"] == {"first": True, "second": True}
    assert jobs.view(second)["seconds_left"] is None and jobs.view(second)["seconds"] >= 0


def test_a_waiting_job_is_cancelled_at_once_and_never_begins(jobs: Jobs) -> None:
    gate, begun = Gate(), threading.Event()
    first = jobs.submit(gate)["job"]
    gate.wait()
    second = jobs.submit(lambda _job: begun.set() or {})["job"]  # type: ignore[func-returns-value]
    assert jobs.cancel(second)["state"] == "cancelled"
    third = jobs.submit(lambda _job: {})["job"]
    gate.may.release()
    assert ended(jobs, third)["state"] == "done" == jobs.view(first)["state"]
    assert jobs.view(second)["state"] == "cancelled" and not begun.is_set()


def test_a_running_job_is_cancelled_at_its_next_step_and_keeps_what_it_has(jobs: Jobs) -> None:
    gate = Gate(steps=3)
    name = jobs.submit(gate)["job"]
    gate.wait()
    gate.may.release()
    until(lambda: jobs.view(name)["result"] is not None)
    cancelling = jobs.cancel(name)
    assert cancelling["state"] == "running" and cancelling["cancelling"]
    gate.may.release()
    view = ended(jobs, name)
    assert (view["state"], view["result"], view["error"]) == ("cancelled", {"done": 1}, None)
    assert jobs.cancel(name)["state"] == "cancelled", "once more does no harm"


def test_a_failure_is_said_and_does_not_stop_the_others(jobs: Jobs, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(_job: Job) -> dict[str, Any]:
        raise DataError("no such policy")

    def crash(_job: Job) -> dict[str, Any]:
        raise RuntimeError("out of memory")

    with caplog.at_level(logging.ERROR, "paco.play"):
        refused, crashed = jobs.submit(refuse)["job"], jobs.submit(crash)["job"]
        ended(jobs, crashed)
    assert (jobs.view(refused)["state"], jobs.view(refused)["error"]) == ("failed", "no such policy")
    assert jobs.view(crashed)["error"] == "RuntimeError: out of memory"
    assert [record.exc_info is not None for record in caplog.records] == [True], "the terminal shows where it crashed"


def test_only_some_may_wait_and_only_the_last_are_kept(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "KEPT", 3)
    gate = Gate()
    jobs.submit(gate)
    gate.wait()
    waiting = [jobs.submit(lambda _job: {})["job"] for _ in range(queue.WAITING)]
    with pytest.raises(Full, match="8 requests wait already"):
        jobs.submit(lambda _job: {})
    jobs.cancel(waiting[0])
    waiting.append(jobs.submit(lambda _job: {})["job"])
    gate.may.release()
    ended(jobs, waiting[-1])
    jobs.submit(lambda _job: {})
    known = []
    for name in waiting:
        try:
            known.append(jobs.view(name)["job"])
        except UnknownJob:
            continue
    assert known == waiting[-len(known) :] and 1 <= len(known) <= 4
    with pytest.raises(UnknownJob, match="not known any more"):
        jobs.cancel("0123456789abcdef")


def test_what_ended_holds_nothing_but_its_result(jobs: Jobs) -> None:
    pictures = Gate()
    name = jobs.submit(lambda _job, _pictures=pictures: {"made": True})["job"]
    left = weakref.ref(pictures)
    del pictures
    ended(jobs, name)
    until(lambda: left() is None)


def test_closing_cancels_all_and_says_whether_something_could_not_be_stopped() -> None:
    jobs, gate = Jobs(), Gate()
    running = jobs.submit(gate)["job"]
    gate.wait()
    waiting = jobs.submit(lambda _job: {})["job"]
    assert not jobs.close(0.01), "it is at work still"
    assert jobs.view(waiting)["state"] == "cancelled"
    gate.may.release()
    assert jobs.close(PATIENCE_S) and jobs.view(running)["state"] == "cancelled"
