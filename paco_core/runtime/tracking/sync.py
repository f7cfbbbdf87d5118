"""Sends at once, in this process, what earlier ones left behind: `paco sync` and the sensor `housekeeping`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paco_core.runtime.tracking.delivery import Delivery, short
from paco_core.runtime.tracking.journal import DamagedJournal, Journal, journals, sweep
from paco_core.runtime.tracking.store import tracking_uri

#: MLflow asks seven times over minutes by itself; here the journal does the waiting.
HTTP = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


@contextmanager
def brief_requests(**settings: str) -> Iterator[None]:
    """Requests that give up soon, unless the environment says how long to try.

    Args:
        settings: MLflow's variables that are to be other than in :data:`HTTP`.
    """
    ours = {name: value for name, value in {**HTTP, **settings}.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


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
    """Deliver every journal whose writer has gone; a store that does not answer is asked once each.

    What a sender is at is left to it and counted as waiting.
    """
    runs = events = waiting = 0
    problems: list[str] = []
    deadline = time.monotonic() + patience_s
    sweep(root)
    with brief_requests():
        for journal in journals(root):
            try:
                if not (journal.is_left() and journal.home.exists()):
                    continue
                before = journal.count_waiting()
                if journal.reserve():
                    problems += _deliver(journal, tracking_uri(root), deadline)
                after = journal.count_waiting()
                runs, events, waiting = runs + (after < before), events + before - after, waiting + after
                if journal.is_done():
                    journal.remove()
            except FileNotFoundError:
                pass  # a sender was faster
            except DamagedJournal as error:
                problems.append(f"{error}; it is kept and does not block the others: fix the line or remove the folder")
            finally:
                journal.free()
    return Sent(runs, events, waiting, tuple(problems))


def _deliver(journal: Journal, uri: str, deadline: float) -> list[str]:
    """Deliver until nothing waits, the time is over or the store does not answer; what people should know of it.

    A file that a store in good health does not take is asked again at once, and set aside by the delivery after some
    attempts: each process that comes by would else ask once, and the run would never end.
    """
    problems: list[str] = []
    delivery = Delivery(journal, uri, problems.append)
    while time.monotonic() < deadline:
        try:
            if not delivery.step():
                break
        except DamagedJournal:
            raise
        except Exception as error:
            if not delivery.is_stuck():
                reason = f"MLflow at {delivery.store()} does not accept it ({short(error)})"
                return [*problems, f"{journal.home.name}: {reason}"]
    return problems
