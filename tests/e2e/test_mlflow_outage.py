"""A real MLflow server, killed in mid-run and started again: the run continues and the store ends up complete.

A real sender process sends, not the thread of other tests.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from PIL import Image

from paco_core.runtime.tracking import open_run, sender
from paco_core.runtime.tracking.journal import FOLDER, journals
from paco_core.runtime.tracking.sender import start
from tests.support.waiting import until

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]


class Server:
    """`mlflow server` on a SQLite store and a port of its own."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.folder, self.process = folder, None
        self.store = folder / "server.db"
        shutil.copy(template, self.store)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = ["--backend-store-uri", f"sqlite:///{self.store}", "--artifacts-destination", str(self.folder / "a")]
        listen = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *command, *listen],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=2)
                return
            except OSError:
                assert time.monotonic() < deadline and self.process.poll() is None, "the server does not start"
                time.sleep(0.2)

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(autouse=True)
def real_sender(sender_in_a_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "start", start)


@pytest.fixture
def server(tmp_path: Path, mlflow_template: Path) -> Iterator[Server]:
    folder = tmp_path / "server"
    folder.mkdir()
    server = Server(folder, mlflow_template)
    yield server
    server.kill()


def test_a_server_killed_in_mid_run_gets_every_figure_once(
    server: Server, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    server.start()
    messages: list[str] = []
    with open_run(project, "paco/policies/flux", "policies/x", {}, print_line=messages.append) as tracker:
        assert tracker.run_id is not None
        for step in range(300):
            tracker.metrics({"train/loss": step / 7, "samples_seen": step * 96}, step)
            if step == 100:
                server.kill()
            if step in (50, 150):
                tracker.image(Image.new("RGB", (16, 16), "red"), "unseen_64px", step)
        (journal,) = journals(project)
        until(lambda: journal.delivered().outage)
        server.start()
        run_id = tracker.run_id
    assert messages == []
    server.kill()
    client = mlflow.MlflowClient(f"sqlite:///{server.store}")
    assert client.get_run(run_id).info.status == "FINISHED"
    for key, factor in (("train/loss", 1 / 7), ("samples_seen", 96)):
        points = [(m.step, m.value) for m in client.get_metric_history(run_id, key)]
        assert points == [(step, pytest.approx(step * factor)) for step in range(300)]
    pictures = [p.name for p in (server.folder / "a").rglob("*.png")]
    assert sorted(name.split("+")[2] for name in pictures) == ["150", "50"]
    assert list((project / FOLDER).iterdir()) == []
