"""Progress of long loops: a bar in a terminal, a plain line every few seconds in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
LINE_EVERY_S = 5.0
SLOW = 0.1  # units per second; below it, show seconds per unit


def _clock(seconds: float) -> str:
    minutes, remainder = divmod(int(seconds + 0.5), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{remainder:02d}" if minutes >= 60 else f"{minutes}:{remainder:02d}"


class Progress:
    """Counts towards ``total`` and reports done/total, rate and time left.

    ``log`` receives a plain line every few seconds if stderr is not a terminal; without it nothing is reported.
    Several threads may advance it.
    """

    def __init__(self, total: int, label: str, unit: str, log: Callable[[str], None] | None = None) -> None:
        self.total, self.label, self.unit, self.log = total, label, unit, log
        self.completed, self.note = 0, ""
        self._start = self._last = time.monotonic()
        self._lock = threading.Lock()
        self._bar = None
        if log is not None and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, desc=label, unit=unit, leave=False, dynamic_ncols=True)

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count ``count`` more units as done; ``note`` is shown behind the figures."""
        with self._lock:
            self.completed += count
            self.note = note or self.note
            if self._bar is not None:
                self._bar.set_postfix_str(self.note, refresh=False)
                self._bar.update(count)
            elif self.log and (time.monotonic() - self._last >= LINE_EVERY_S or self.completed >= self.total):
                self._last = time.monotonic()
                self.log(self.line())

    def line(self) -> str:
        """The present state as one line of text."""
        spent = max(time.monotonic() - self._start, 1e-9)
        rate = self.completed / spent
        left = (self.total - self.completed) / rate if rate else float("inf")
        tail = f", {self.note}" if self.note else ""
        remaining = f"{_clock(left)} left" if left != float("inf") else "time left unknown"
        if self.completed >= self.total:
            remaining = f"took {_clock(spent)}"
        pace = f"{rate:.3g} {self.unit}/s" if rate >= SLOW or not rate else f"{1 / rate:.3g} s each"
        return f"{self.label}: {self.completed}/{self.total} {self.unit}, {pace}, {remaining}{tail}"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def track(self, items: Iterable[T]) -> Iterator[T]:
        """Iterate, counting one unit an item."""
        for item in items:
            yield item
            self.advance()
