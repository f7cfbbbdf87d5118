"""The page of `paco play` in a real browser: the process of the server, and a tab that fails on errors."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.chromium import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

PATIENCE_S = 300.0


class Play:
    """``paco play`` in a process of its own."""

    def __init__(self, root: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "paco_core", "play", "--no-open", "--port", "0", *arguments]
        path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": path}
        self.process = subprocess.Popen(
            command, cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.fullmatch(r"paco play: (http://127\.0\.0\.1:\d+)\n", line)
        assert match, line + self.process.stdout.read()
        self.address = match[1]

    def end(self, by: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(by)
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output


@contextmanager
def open_page(root: Path) -> Iterator[Page]:
    """A fresh tab with the page of a project, in which nothing may go wrong that the test does not expect."""
    play, errors = Play(root), list[str]()
    try:
        with chromium() as browser:
            tab = browser.new_page(viewport={"width": 1500, "height": 1000})
            tab.set_default_timeout(PATIENCE_S * 1000)
            tab.on("pageerror", lambda error: errors.append(str(error)))
            tab.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
            tab.goto(play.address)
            tab.wait_for_selector("#paint-policy:not([disabled])")
            yield tab
    finally:
        play.end(signal.SIGTERM)
    assert [error for error in errors if "status of 422" not in error] == []


def expect(locator: Locator) -> Any:
    from playwright.sync_api import expect as expected

    expected.set_options(timeout=PATIENCE_S * 1000)
    return expected(locator)


def finished(page: Page, section: str) -> None:
    """Wait until no job of a section runs."""
    expect(page.locator(f"#{section} .found")).to_have_attribute("aria-busy", "false")
