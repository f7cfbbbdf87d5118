"""How `paco play` begins and ends; the page itself is tried in tests/unit/operations and tests/e2e."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paco_core.cli import play as command
from paco_core.io import local_server
from paco_core.operations.play.jobs import Job, Jobs


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that a browser was asked to open; none is."""
    found: list[str] = []
    monkeypatch.setattr(command.webbrowser, "open", found.append)
    return found


def served(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object] = lambda: None) -> None:
    """Instead of serving until a signal comes: act, and be interrupted."""

    def serve(_app: object, _listener: socket.socket) -> None:
        act()
        raise KeyboardInterrupt

    monkeypatch.setattr(local_server, "serve", serve)


@pytest.mark.parametrize(("display", "asked", "count"), [(":0", True, 1), (":0", False, 0), ("", True, 0)])
def test_a_browser_is_opened_where_there_is_a_display(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    opened: list[str],
    display: str,
    asked: bool,
    count: int,
) -> None:
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    served(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        command.play(project, 0, browser=asked)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("paco play: http://127.0.0.1:") and said[1] == "Ctrl-C stops."
    assert opened == [said[0].removeprefix("paco play: ")] * count


def test_what_cannot_be_interrupted_is_not_waited_for(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, over, ends = threading.Event(), threading.Event(), list[int]()

    class Busy(Jobs):
        """Its thread loads a model that takes its time."""

        def __init__(self) -> None:
            super().__init__()
            self.submit(load)

    def load(_job: Job) -> dict[str, object]:
        begun.set()
        assert over.wait(60)
        return {}

    monkeypatch.setattr(command, "Jobs", Busy)
    monkeypatch.setattr(command, "PATIENCE_S", 0.01)
    monkeypatch.setattr(command.os, "_exit", ends.append)
    served(monkeypatch, lambda: begun.wait(60))
    with pytest.raises(KeyboardInterrupt):
        command.play(project, 0, browser=False)
    over.set()
    assert ends == [130] and "while a model was being loaded or at work" in capsys.readouterr().err
