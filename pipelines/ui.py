"""Dagster and MLflow side by side until Ctrl-C: ``python -m pipelines.ui``."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.dvc.process import interrupt_on, search_path

HOST = "127.0.0.1"
GRACE_SECONDS = 15.0


@dataclass(frozen=True)
class Server:
    """A server to keep: what starts it, where it listens, and what has to end well before it starts."""

    name: str
    command: Sequence[str]
    port: int
    before: Sequence[str] = ()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


def servers(root: Path, dagster_port: int, mlflow_port: int) -> list[Server]:
    """Dagster, and MLflow unless ``MLFLOW_TRACKING_URI`` names a server that runs elsewhere."""
    python = [sys.executable, "-m"]
    dagster = [*python, "dagster", "dev", "-w", "workspace.yaml", "-h", HOST, "-p", str(dagster_port)]
    chosen = [Server("Dagster", dagster, dagster_port)]
    store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root / 'mlflow.db'}"
    if not store.startswith(("http://", "https://")):
        where = ["--backend-store-uri", store, "--artifacts-destination", str(root / "mlartifacts")]
        listen = ["--host", HOST, "--port", str(mlflow_port), "--workers", "1"]
        before = [*python, "paco_core.tracking.prepare", store]
        chosen.append(Server("MLflow", [*python, "mlflow", "server", *where, *listen], mlflow_port, before))
    return chosen


def environment(root: Path, running: Sequence[Server] = ()) -> dict[str, str]:
    """Where Dagster keeps its storage, where links between the two lead, and no telemetry or jobs of MLflow."""
    home = Path(os.environ.get("DAGSTER_HOME") or root / ".dagster").resolve()
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(root / "dagster.yaml", home / "dagster.yaml")
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    pages = {f"PACO_{server.name.upper()}_URL": server.url for server in running}
    return {**pages, **os.environ, **quiet, "DAGSTER_HOME": str(home), "PATH": search_path()}


def in_use(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def busy(server: Server) -> str:
    """What to say where the port of a server is taken."""
    from paco_core.serving.process import port_holder  # late: only then

    way_out = f"make ui {server.name.upper()}_PORT={server.port + 1}"
    return (
        f"{server.name}: port {server.port} of {HOST} is in use by {port_holder(server.port)}. If that is an earlier "
        f"`make ui`, it is up already; otherwise end it, or choose another port: `{way_out}`"
    )


def stop(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the servers: SIGTERM to each parent, which ends its children; SIGKILL to groups that stay."""
    for process in running:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for process in running:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def serve(root: Path, dagster_port: int, mlflow_port: int) -> int:
    """Run both until a signal, or until one ends; the exit status."""
    chosen = servers(root, dagster_port, mlflow_port)
    for server in chosen:
        if in_use(server.port):
            print(busy(server), file=sys.stderr)
            return 1
    running: list[subprocess.Popen[bytes]] = []

    interrupt_on(signal.SIGINT, signal.SIGTERM)  # SIGINT too: a shell's background job starts with it ignored
    try:
        env = environment(root, chosen)
        for server in chosen:
            if server.before and subprocess.run(server.before, cwd=root, env=env).returncode != 0:
                print(f"{server.name} cannot start; the reason is above", file=sys.stderr)
                return 1
            # A session of its own: Ctrl-C reaches this process only, which stops both in order.
            running.append(subprocess.Popen(server.command, cwd=root, env=env, start_new_session=True))
            print(f"{server.name} on {server.url}", file=sys.stderr, flush=True)
        while all(process.poll() is None for process in running):
            time.sleep(0.2)
        ended = next(s for s, p in zip(chosen, running, strict=True) if p.poll() is not None)
        print(f"{ended.name} ended by itself; its last words are above", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr, flush=True)
        return 0
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave a server behind
        stop(running)


def main() -> None:
    """``python -m pipelines.ui [--dagster-port 3000] [--mlflow-port 5000]``, from the project root."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.ui", description=__doc__)
    parser.add_argument("--dagster-port", type=int, default=3000)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    arguments = parser.parse_args()
    raise SystemExit(serve(Path(__file__).resolve().parent.parent, arguments.dagster_port, arguments.mlflow_port))


if __name__ == "__main__":
    main()
