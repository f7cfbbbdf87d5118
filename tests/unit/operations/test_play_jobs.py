"""The queue behind `paco play`: order, progress, cancelling, failures, and what is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from paco_core.io.files import DataError
from paco_core.operations.play.jobs import Job, Jobs
from tests.support.waiting import until

PATIENCE_S = 60.0


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    job_queue = Jobs()
    yield job_queue
    assert job_queue.close(PATIENCE_S), "the thread has ended"


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


def wait_for_job(jobs: Jobs, name: str) -> dict[str, Any]:
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

    views = [jobs.submit(note(number)) for number in range(3)]
    assert [view["state"] for view in views] == ["waiting"] * 3 and [view["ahead"] for view in views] == [1, 2, 3]
    assert jobs.view(first)["state"] == "running" and order == []
    gate.may.release()
    assert wait_for_job(jobs, views[-1]["job"])["state"] == "done" == jobs.view(first)["state"] and order == [0, 1, 2]
    assert [jobs.view(view["job"])["result"] for view in views] == [{"number": number} for number in range(3)]
    assert len({view["job"] for view in views} | {first}) == 4


def test_a_running_job_is_cancelled_at_its_next_step_and_keeps_what_it_has(jobs: Jobs) -> None:
    gate = Gate(steps=3)
    name = jobs.submit(gate)["job"]
    gate.wait()
    begun = jobs.view(name)
    assert (begun["doing"], begun["done"], begun["total"], begun["seconds_left"]) == ("painting", 0, 3, None)
    gate.may.release()
    until(lambda: jobs.view(name)["result"] is not None)
    cancelling = jobs.cancel(name)
    assert cancelling["state"] == "running" and cancelling["cancelling"]
    gate.may.release()
    view = wait_for_job(jobs, name)
    assert (view["state"], view["result"], view["error"]) == ("cancelled", {"done": 1}, None)


def test_a_failure_is_said_and_does_not_stop_the_others(jobs: Jobs) -> None:
    def refuse(_job: Job) -> dict[str, Any]:
        raise DataError("no such policy")

    def crash(_job: Job) -> dict[str, Any]:
        raise RuntimeError("out of memory")

    rejected, crashed = jobs.submit(refuse)["job"], jobs.submit(crash)["job"]
    wait_for_job(jobs, crashed)
    assert (jobs.view(rejected)["state"], jobs.view(rejected)["error"]) == ("failed", "no such policy")
    assert jobs.view(crashed)["error"] == "RuntimeError: out of memory"


def test_closing_cancels_all_and_says_whether_something_could_not_be_stopped() -> None:
    jobs, gate = Jobs(), Gate()
    running = jobs.submit(gate)["job"]
    gate.wait()
    waiting = jobs.submit(lambda _job: {})["job"]
    assert not jobs.close(0.01), "it is at work still"
    assert jobs.view(waiting)["state"] == "cancelled"
    gate.may.release()
    assert jobs.close(PATIENCE_S) and jobs.view(running)["state"] == "cancelled"
