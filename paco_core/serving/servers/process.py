"""Ports and processes of servers."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dvc_project.file_locks import hold
from paco_core.serving.engines import Launch
from paco_core.serving.protocol import ServingError

TAIL_BYTES = 3000  # of a server's log, in the message of a failed start


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 selects a free port. Clients can connect before a server accepts.

    Raises:
        ServingError: when the port is in use, with the process that uses it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen()  # reserves the port
    except OSError as error:
        bound.close()
        if error.errno != errno.EADDRINUSE:
            raise ServingError(
                f"execution.serving.host {host}, port {port}: cannot be bound ({error.strerror})"
            ) from None
        raise ServingError(
            f"execution.serving.port {port} on {host} is in use by {port_holder(port)}; stop it, choose another port, "
            "or set execution.serving.port to 0 for any free one"
        ) from None
    return bound


def port_holder(port: int) -> str:
    """The process that listens on a TCP port, for example "process 12 (python -m ...)", if the system shows it."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                line = " ".join(psutil.Process(connection.pid).cmdline())
                return f"process {connection.pid} ({line[:200]})"
    except psutil.Error:  # it has ended, or belongs to another user
        pass
    return "another process (of another user, perhaps)"


def spawn_supervisor(
    launch: Launch,
    bound: socket.socket | None,
    server_dir: Path,
    lock: Path,
    idle_timeout_s: float,
    inherited: Sequence[int] = (),
) -> int:
    """Start an engine under a supervisor (:mod:`paco_core.serving.servers.supervisor`).

    ``server_dir/alive`` is locked until the supervisor has ended.

    Args:
        bound: socket that the supervisor and the engine inherit.
        server_dir: folder of the server in the registry.
        lock: lock file of the registry.
        idle_timeout_s: seconds without a lease after which the server stops.
        inherited: other file descriptors that stay open while the supervisor lives (leases of GPUs).

    Returns:
        The process id of the supervisor.
    """
    descriptors = () if bound is None else (bound.fileno(),)
    with hold(server_dir / "alive") as alive, (server_dir / "server.log").open("wb") as log:
        command = [
            sys.executable,
            str(Path(__file__).with_name("supervisor.py")),
            str(server_dir),
            str(lock),
            str(idle_timeout_s),
        ]
        command += [*map(str, descriptors or "-"), *launch.command]
        supervisor = subprocess.Popen(
            command,
            env=dict(launch.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(alive.fileno(), *descriptors, *inherited),
            start_new_session=True,
        )
    _wait_in_background(supervisor)
    return supervisor.pid


def _wait_in_background(process: subprocess.Popen[bytes]) -> None:
    """Wait for the process in a thread, so it does not become a zombie."""
    import threading

    threading.Thread(target=process.wait, name=f"wait-{process.pid}", daemon=True).start()


def tail(path: Path, size: int = TAIL_BYTES) -> str:
    """The last ``size`` bytes of a log, from the start of a line."""
    if not path.is_file():
        return ""
    data = path.read_bytes()
    text = data[-size:].decode(errors="replace")
    return text.partition("\n")[2] if len(data) > size and "\n" in text else text
