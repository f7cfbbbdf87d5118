from __future__ import annotations

import io
import sys

import pytest

from paco_core.io import progress
from paco_core.io.progress import Progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: False)
    return now


def test_a_line_tells_done_rate_and_time_left(clock: list[float]) -> None:
    said: list[str] = []
    bar = Progress(100, "grids", "pictures", said.append)
    clock[0] += 10
    bar.advance(20, note="loss 0.5")
    assert said == ["grids: 20/100 pictures, 2 pictures/s, 0:40 left, loss 0.5"]


def test_slow_units_are_told_in_seconds_each(clock: list[float]) -> None:
    said: list[str] = []
    bar = Progress(4, "policies", "epochs", said.append)
    clock[0] += 113
    bar.advance()
    assert said == ["policies: 1/4 epochs, 113 s each, 5:39 left"]


def test_lines_come_every_few_seconds_and_at_the_end(clock: list[float]) -> None:
    said: list[str] = []
    bar = Progress(4, "train", "steps", said.append)
    for _ in range(4):
        clock[0] += 2
        bar.advance()
    assert [line.split(",")[0] for line in said] == ["train: 3/4 steps", "train: 4/4 steps"]
    assert said[-1].endswith("took 0:08")


def test_without_a_listener_nothing_is_told(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(2, "quiet", "steps") as bar:
        assert list(bar.track("ab")) == ["a", "b"]
    assert capsys.readouterr() == ("", "") and bar.done == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar_with_rate_and_time_left_and_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    said: list[str] = []
    with Progress(4, "grids@0", "pictures", said.append) as counting:
        assert "grids@0:   0%" in shown.getvalue() and "0/4" in shown.getvalue()
        counting.advance(3, note="loss 0.5")
        for part in ("75%", "3/4", "pictures/s", "loss 0.5"):
            assert part in str(counting._bar)
    assert said == []
