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
    """A listening socket; port 0 takes a free one. Whoever connects waits until a server accepts.

    Raises:
        ServingError: when the port is taken, naming the process that holds it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen()  # only a listening socket keeps its port to itself
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
    """The process that listens on a TCP port, as "process 12 (python -m ...)", as far as this system shows it."""
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
    home: Path,
    lock: Path,
    linger_s: float,
    held: Sequence[int] = (),
) -> int:
    """Start an engine under a supervisor (:mod:`paco_core.serving.servers.supervisor`), which takes over ``bound``.

    Returns the supervisor's process id. It keeps the descriptors ``held`` (locks of GPUs) open while it lives.
    ``home/alive`` is locked until the supervisor has ended, whatever ends it.
    """
    descriptors = () if bound is None else (bound.fileno(),)
    with hold(home / "alive") as alive, (home / "server.log").open("wb") as log:
        command = [sys.executable, str(Path(__file__).with_name("supervisor.py")), str(home), str(lock), str(linger_s)]
        command += [*map(str, descriptors or "-"), *launch.command]
        supervisor = subprocess.Popen(
            command,
            env=dict(launch.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(alive.fileno(), *descriptors, *held),
            start_new_session=True,
        )
    _wait_in_background(supervisor)
    return supervisor.pid


def _wait_in_background(process: subprocess.Popen[bytes]) -> None:
    """Collect the exit status when it comes, so that no zombie stays."""
    import threading

    threading.Thread(target=process.wait, name=f"wait-{process.pid}", daemon=True).start()


def tail(path: Path, size: int = TAIL_BYTES) -> str:
    """The last bytes of a log, from a line's start."""
    if not path.is_file():
        return ""
    data = path.read_bytes()
    text = data[-size:].decode(errors="replace")
    return text.partition("\n")[2] if len(data) > size and "\n" in text else text
