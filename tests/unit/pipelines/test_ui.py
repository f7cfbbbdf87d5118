"""`python -m paco_pipelines.ui`: what it starts, and that one signal ends it all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from paco_core.runtime.tracking import dagster_url, run_url
from paco_pipelines import ui
from tests.support.waiting import free_port


def test_both_listen_on_this_machine_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    pages = [s for s in ui.servers(tmp_path, 3000, 5000, tmp_path) if s.port]
    assert [s.url for s in pages] == ["http://127.0.0.1:5000", "http://127.0.0.1:3000"]
    assert all("127.0.0.1" in s.command for s in pages)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example.org")
    assert [s.name for s in ui.servers(tmp_path, 3000, 5000, tmp_path) if s.port] == ["Dagster"]


def test_webserver_and_daemon_ask_one_code_server(tmp_path: Path, repository: Path) -> None:
    code, page, daemon = ui.servers(repository, 3000, 5000, tmp_path)[-3:]
    (location,) = yaml.safe_load((tmp_path / "workspace.yaml").read_text())["load_from"]
    (declared,) = yaml.safe_load((repository / "workspace.yaml").read_text())["load_from"]
    assert location["grpc_server"] == {"socket": str(code.socket), "location_name": "paco"}
    names = {"module_name": ui.DEFINITIONS, "location_name": ui.LOCATION}
    assert declared["python_module"] == {**names, "working_directory": "."}
    assert {"-m", ui.DEFINITIONS, ui.LOCATION, str(code.socket)} <= set(code.command)
    assert all(str(tmp_path / "workspace.yaml") in server.command for server in (page, daemon))
    assert "paco_pipelines.webserver" in page.command, "the one with the guard"


def test_links_lead_to_the_ports_that_were_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "PACO_DAGSTER_URL", "PACO_MLFLOW_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    env = ui.environment(tmp_path, ui.servers(tmp_path, 3917, 5917, tmp_path))
    assert env["DAGSTER_HOME"] == str(tmp_path / ".dagster")
    assert (tmp_path / ".dagster/dagster.yaml").read_text() == "telemetry: {enabled: false}\n"
    for name in ("PACO_DAGSTER_URL", "PACO_MLFLOW_URL"):
        monkeypatch.setenv(name, env[name])
    assert dagster_url("ab") == "http://127.0.0.1:3917/runs/ab"
    assert run_url("sqlite:///mlflow.db", "1", "cd") == "http://127.0.0.1:5917/#/experiments/1/runs/cd"


def test_a_port_in_use_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with socket.socket() as listener:
        listener.bind((ui.HOST, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert ui.serve_ui(tmp_path, port, free_port()) == ui.serve_ui(tmp_path, free_port(), port) == 1
    for line in capsys.readouterr().err.splitlines():
        assert str(port) in line and str(os.getpid()) in line


FAKE = '''
import sys
from pathlib import Path
from paco_pipelines import ui
child = """
import os, socket, sys, time
listening = socket.create_server(("127.0.0.1", int(sys.argv[1]))) if sys.argv[1] != "0" else None
os.write(1, b"up" + bytes([10]))
time.sleep(600)
"""
ports = {"MLflow": sys.argv[1], "Dagster": sys.argv[2], "C": "0"}
made = [ui.UiProcess(name, [sys.executable, "-c", child, port], int(port)) for name, port in ports.items()]
ui.servers = lambda *_: made
raise SystemExit(ui.serve_ui(Path(sys.argv[3]), 0, 0))
'''


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_one_signal_ends_all(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "dagster.yaml").write_text("{}\n")
    ports = [str(free_port()), str(free_port())]
    command = [sys.executable, "-c", FAKE, *ports, str(tmp_path)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None and running.stderr is not None
    assert [running.stdout.readline() for _ in range(3)] == [b"up\n"] * 3
    announced = takewhile(lambda line: line != b"Ctrl-C stops all.\n", running.stderr)
    assert f"Dagster on http://127.0.0.1:{ports[1]}/asset-groups?" in b"".join(announced).decode()
    running.send_signal(number)
    running.communicate(timeout=120)  # the pipe closes only when the children are gone
    assert running.returncode == (0 if number is signal.SIGINT else -number)
