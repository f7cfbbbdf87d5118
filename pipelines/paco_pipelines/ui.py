"""Dagster and MLflow side by side until Ctrl-C: ``python -m paco_pipelines.ui``.

Dagster is three processes, as in any deployment of it: the code server that holds the definitions, the webserver (ours,
with the guard before it) and the daemon. ``dagster dev`` is not used: its webserver lets any web page start runs.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from dvc_project.process_group import interrupt_on, search_path, start_group
from paco_core.io import local_server
from paco_core.io.files import DataError
from paco_core.io.messages import explain_os_error
from paco_core.io.numbers import whole_number
from paco_core.io.project import ensure_user, project_root
from paco_core.runtime.tracking.store import ARTIFACTS, ARTIFACTS_URI, tracking_uri
from paco_pipelines.antlr import antlr_problem
from paco_pipelines.instance.settings import name_home, write_settings
from paco_pipelines.links import links
from paco_pipelines.reloading import watch

HOST = "127.0.0.1"
GRACE_SECONDS = 15.0
PATIENCE_SECONDS = 300.0  # a busy machine takes long to import things
POLL_SECONDS = 0.1
# The process that holds the definitions ends when the code server has not called it for so long, and Dagster shows an
# empty graph from then on: Dagster's 30 s pass on a busy machine, or while a laptop sleeps.
HEARTBEAT_SECONDS = 24 * 3600
LOCATION, DEFINITIONS = "paco", "pipelines.definitions"  # as in workspace.yaml


@dataclass(frozen=True)
class UiProcess:
    """A process to keep: what starts it, and what has to end well before it starts.

    A server has a ``port`` of this machine that people use, or a ``socket`` that the processes after it use. Those wait
    until it answers there.
    """

    name: str
    command: Sequence[str]
    port: int = 0  # 0: none
    before: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # beside that of all
    socket: Path | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def answers(self) -> bool:
        """Whether something accepts connections there; a process without an address has nothing to wait for."""
        if self.socket is not None:
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(str(self.socket)) == 0
        return not self.port or is_port_in_use(self.port)


def servers(root: Path, dagster_port: int, mlflow_port: int, runtime: Path) -> list[UiProcess]:
    """MLflow, unless ``MLFLOW_TRACKING_URI`` names a server that runs elsewhere, and Dagster, in order of starting.

    ``runtime`` is a folder of this process, where the code server's socket and the workspace that names it lie.
    """
    python = [sys.executable, "-m"]
    chosen = []
    store = tracking_uri(root)
    if not store.startswith(("http://", "https://")):
        artifact_options = ["--artifacts-destination", os.environ.get(ARTIFACTS_URI) or str(root / ARTIFACTS)]
        listen = ["--host", HOST, "--port", str(mlflow_port), "--workers", "1"]
        # A line per request would push the addresses, which are printed last, out of the terminal.
        listen += ["--uvicorn-opts", "--log-level warning"]
        before = [*python, "paco_core.runtime.tracking.prepare"]
        hidden = {"MLFLOW_BACKEND_STORE_URI": store}  # it may hold a password, and everybody sees arguments
        hidden["PYTHONWARNINGS"] = "ignore:starlette.middleware.wsgi is deprecated"  # MLflow's own import
        command = [*python, "mlflow", "server", *artifact_options, *listen]
        chosen.append(UiProcess("MLflow", command, mlflow_port, before=before, environment=hidden))
    code, workspace = runtime / "code.sock", runtime / "workspace.yaml"
    location = {"grpc_server": {"socket": str(code), "location_name": LOCATION}}
    workspace.write_text(yaml.safe_dump({"load_from": [location]}))
    holds = ["-m", DEFINITIONS, "--location-name", LOCATION, "--inject-env-vars-from-instance", "--socket", str(code)]
    holds += ["--heartbeat-ttl", str(HEARTBEAT_SECONDS)]
    serves = [*python, "dagster", "code-server", "start", *holds, "--log-level", "warning"]
    page = ["--workspace", str(workspace), "--host", HOST, "--port", str(dagster_port)]
    # It warns, on a new instance, that it passes over older events, of which there are none.
    works = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-w", str(workspace), "--log-level", "error"]
    return [
        *chosen,
        UiProcess("the code server", serves, socket=code, before=[*python, "paco_pipelines.instance.prepare"]),
        UiProcess("Dagster", [*python, "paco_pipelines.webserver", *page], dagster_port),
        UiProcess("the daemon", works),
    ]


def environment(root: Path, running: Sequence[UiProcess] = ()) -> dict[str, str]:
    """Where Dagster keeps its storage, where links between the two lead, and no telemetry or jobs of MLflow."""
    home = Path(os.environ.get("DAGSTER_HOME") or root / ".dagster").resolve()
    name_home(root)
    write_settings(root, home)
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1"}
    pages = {f"PACO_{server.name.upper()}_URL": server.url for server in running if server.port}
    return {**pages, **os.environ, **quiet, "DAGSTER_HOME": str(home), "PATH": search_path()}


def is_port_in_use(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def busy(server: UiProcess) -> str:
    """What to say where the port of a server is taken."""
    from paco_core.serving.servers.process import port_holder  # late: only then

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


def serve_ui(root: Path, dagster_port: int, mlflow_port: int, *, browser: bool = False) -> int:
    """Run them until a signal, or until one ends; the exit status.

    Args:
        browser: open the lineage in a browser when all pages answer, if this machine has a display.
    """
    # /tmp and not the project: the path of a socket has at most 107 characters
    with tempfile.TemporaryDirectory(prefix="paco-ui-") as runtime:
        chosen = servers(root, dagster_port, mlflow_port, Path(runtime))
        for server in chosen:
            if server.port and is_port_in_use(server.port):
                print(busy(server), file=sys.stderr)
                return 1
        return _keep(root, chosen, browser)


def _keep(root: Path, chosen: Sequence[UiProcess], browser: bool) -> int:
    running: list[subprocess.Popen[bytes]] = []
    stopping = threading.Event()

    interrupt_on(signal.SIGINT, signal.SIGTERM)  # SIGINT too: a shell's background job starts with it ignored
    try:
        env = environment(root, chosen)
        names = " and ".join(server.name for server in chosen if server.port)
        print(f"starting {names}; their addresses follow", file=sys.stderr, flush=True)
        for server in chosen:
            if server.before and subprocess.run(server.before, cwd=root, env=env).returncode != 0:
                print(f"{server.name} cannot start; the reason is above", file=sys.stderr)
                return 1
            running.append(start_group(server.command, cwd=root, env={**env, **server.environment}))
            if server.socket is not None and not _await([server], chosen, running):
                return 1
        pages = [server for server in chosen if server.port]
        if not _await(pages, chosen, running):
            return 1
        urls = {page.name: page.url for page in pages}
        mlflow = urls.get("MLflow") or tracking_uri(root)
        addresses = links(root, urls["Dagster"], mlflow)
        # Dagster's own start page is an empty timeline until something has run, so its lineage is announced.
        print(f"\nDagster on {addresses['lineage']}", file=sys.stderr)
        if "MLflow" in urls:
            print(f"MLflow on {mlflow}", file=sys.stderr)
        for title, address in addresses.items():
            if title != "lineage":
                print(f"  {title}: {address}", file=sys.stderr)
        print("Ctrl-C stops all.", file=sys.stderr, flush=True)
        if browser and local_server.has_display():
            webbrowser.open(addresses["lineage"])
        _watch(root, chosen, stopping)
        while not _has_ended(chosen, running):
            time.sleep(POLL_SECONDS)
        return 1
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr, flush=True)
        return 0
    finally:
        stopping.set()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave a server behind
        stop(running)


def _watch(root: Path, chosen: Sequence[UiProcess], stopping: threading.Event) -> None:
    """Reload the definitions of the code server after a change of the project."""
    for server in chosen:
        if server.socket is not None:
            threading.Thread(target=watch, args=(root, server.socket, stopping), daemon=True).start()


def _await(
    awaited: Sequence[UiProcess], chosen: Sequence[UiProcess], running: Sequence[subprocess.Popen[bytes]]
) -> bool:
    """Whether all of them come to answer; says which does not."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not all(server.answers() for server in awaited):
        if _has_ended(chosen, running):
            return False
        if time.monotonic() > deadline:
            names = ", ".join(server.name for server in awaited if not server.answers())
            print(f"{names}: no answer after {PATIENCE_SECONDS:.0f} s", file=sys.stderr)
            return False
        time.sleep(POLL_SECONDS)
    return True


def _has_ended(chosen: Sequence[UiProcess], running: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Whether one of those that run ended by itself; says which."""
    for server, process in zip(chosen, running, strict=False):  # the last ones may not have started
        if process.poll() is not None:
            print(f"{server.name} ended by itself; its last output is above", file=sys.stderr)
            return True
    return False


def main() -> None:
    """``python -m paco_pipelines.ui [--dagster-port 3000] [--mlflow-port 5000]``, from the project root."""
    parser = argparse.ArgumentParser(prog="python -m paco_pipelines.ui", description=__doc__)
    parser.add_argument("--dagster-port", type=whole_number(1, 65535), default=3000)
    parser.add_argument("--mlflow-port", type=whole_number(1, 65535), default=5000)
    arguments = parser.parse_args()
    ensure_user()
    if problem := antlr_problem():
        raise SystemExit(f"ui: {problem}")
    try:
        raise SystemExit(serve_ui(project_root(), arguments.dagster_port, arguments.mlflow_port, browser=True))
    except DataError as error:
        raise SystemExit(f"ui: {error}") from None
    except OSError as error:
        if (message := explain_os_error(error)) is None:
            raise
        raise SystemExit(f"ui: {message}") from None


if __name__ == "__main__":
    main()
