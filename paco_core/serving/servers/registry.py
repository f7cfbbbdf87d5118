"""Registry of servers: one folder per served name below ``.paco/serving``, protected by file locks.

``<name>/server.json`` contains the address of the server. ``alive`` is locked while its supervisor lives. ``leases/``
contains one locked file per user. ``stay`` marks a server that a user started, and ``server.log`` is its output. Locks
show which processes live, because process ids are reused.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from dvc_project.file_locks import hold, is_held, locked, remove_unless_held
from paco_core.io.files import DataError, read_json, write_json
from paco_core.io.local_server import is_loopback
from paco_core.io.project import owner_root
from paco_core.runtime.gpus import for_server
from paco_core.serving.engines import Launch
from paco_core.serving.protocol import API_KEY, ServingError
from paco_core.serving.servers.process import bind, spawn_supervisor

FOLDER = Path(".paco") / "serving"
STOP_S = 15.0
GATEWAY = "gateway"  # name and engine of the server that passes requests on to the others


@dataclass(frozen=True)
class ServerRecord:
    """A server that was started: its name, address and supervisor."""

    name: str
    url: str
    pid: int
    engine: str
    model: str
    started: float
    dtype: str = ""  # number format of the computation
    code: str = ""  # digest of paco's code, or of the packages in the engine's environment
    device: str = ""  # kind of device
    limits: str = ""  # digest of the limits on requests


@dataclass(frozen=True)
class ServerSettings:
    """Settings to start a server.

    Attributes:
        idle_timeout_s: seconds without a lease after which it stops.
        launch: returns the command, from host, port and descriptor of the bound socket.
        gpus: number of GPUs.
        limits: digest of the limits on requests.
    """

    engine: str
    model: str
    host: str
    port: int
    dtype: str
    idle_timeout_s: float
    launch: Callable[[str, int, int], Launch]
    code: str = ""
    gpus: int = 0
    device: str = ""
    limits: str = ""

    def differs(self, record: ServerRecord) -> str | None:
        """The difference of a living server that would change its answers; None if there is none.

        Compared are code, engine, number format, device and limits. The weights are equal, because the name of the
        record contains their fingerprint. Threads, batches and the number of GPUs change scores by rounding only, so
        they are not compared, nor is the address.
        """
        if (record.engine, record.dtype) != (self.engine, self.dtype):
            return f"is {record.engine} {record.dtype}, params.yaml asks for {self.engine} {self.dtype}"
        if record.device != self.device:
            return f"computes on {record.device or 'an unknown device'}, params.yaml asks for {self.device}"
        if record.limits != self.limits:
            return "has another limit than max_model_len of execution.serving"
        return "runs other code than that of this project" if record.code != self.code else None


class Registry:
    """The servers of one project, which its experiments share."""

    def __init__(self, root: Path) -> None:
        self.root = owner_root(root)
        self.folder = self.root / FOLDER
        self._lock = self.folder / "lock"

    def server_dir(self, name: str) -> Path:
        return self.folder / name

    def log(self, name: str) -> Path:
        return self.server_dir(name) / "server.log"

    def guard(self) -> AbstractContextManager[object]:
        """Lock the registry."""
        return locked(self._lock)

    def names(self) -> list[str]:
        """All names that have a folder, also of ended servers, the last used last."""
        server_dirs = [path.parent for path in self.folder.glob("*/server.log")]
        return [server_dir.name for server_dir in sorted(server_dirs, key=lambda h: (h / "server.log").stat().st_mtime)]

    def is_recorded(self, name: str) -> bool:
        """Whether a server of that name was started and not stopped since: it lives, or it died."""
        return (self.server_dir(name) / "server.json").is_file()

    def living(self, name: str) -> ServerRecord | None:
        """The record of a server whose supervisor lives."""
        if not self.is_recorded(name) or not is_held(self.server_dir(name) / "alive"):
            return None
        try:
            return ServerRecord(**read_json(self.server_dir(name) / "server.json"))
        except DataError:
            if self.is_recorded(name):
                raise
            return None  # it ended at this moment

    def leases(self, name: str) -> int:
        return sum(is_held(path) for path in (self.server_dir(name) / "leases").glob("*"))

    def is_persistent(self, name: str) -> bool:
        return (self.server_dir(name) / "stay").exists()

    def acquire(self, name: str, settings: ServerSettings, keep_alive: bool = False) -> tuple[ServerRecord, IO[bytes]]:
        """Lease the living server of a name, or start one. Many processes may call this at the same time.

        A server with other settings (:meth:`ServerSettings.differs`) is stopped first, unless it is in use.

        Args:
            keep_alive: keep the server until :meth:`stop`.

        Returns:
            The record, and the lease: a file that is locked while it is open.

        Raises:
            ServingError: when the port is in use, the engine is missing, or a server with other settings is in use.
        """
        deadline = time.monotonic() + STOP_S
        while True:
            with self.guard():
                record = self.living(name)
                if record is not None and (differs := settings.differs(record)):
                    self._validate_unused(record, differs)
                    self._terminate(name)
                    record = None
                if record is not None or not is_held(self.server_dir(name) / "alive"):
                    return self._acquire_lease(name, record, settings, keep_alive)
            if time.monotonic() > deadline:  # a predecessor is still ending; it may need the lock for that
                raise ServingError(f"server {name} does not stop; see {self.log(name)}")
            time.sleep(0.02)

    def _validate_unused(self, record: ServerRecord, differs: str) -> None:
        if self.is_persistent(record.name) or self.leases(record.name):
            raise ServingError(
                f"server {record.name} (process {record.pid}) {differs}, and is in use; wait until it ends, or end it "
                f"with `paco serve down {record.name}`"
            )

    def _acquire_lease(
        self, name: str, record: ServerRecord | None, settings: ServerSettings, keep_alive: bool
    ) -> tuple[ServerRecord, IO[bytes]]:
        server_dir = self.server_dir(name)
        lease = hold(server_dir / "leases" / f"{os.getpid()}-{uuid.uuid4().hex[:8]}")
        if record is None:
            (server_dir / "stay").unlink(missing_ok=True)
            try:
                record = self._start(name, settings)
            except BaseException:
                end_lease(lease)
                raise
        if keep_alive:
            (server_dir / "stay").touch()
        return record, lease

    def _start(self, name: str, settings: ServerSettings) -> ServerRecord:
        server_dir = self.server_dir(name)
        if not is_loopback(settings.host) and not os.environ.get(API_KEY):
            raise ServingError(
                f"execution.serving.host {settings.host} lets other machines in; set {API_KEY} to a secret, here and "
                "for the clients, or serve on 127.0.0.1"
            )
        with (
            bind(settings.host, settings.port) as listener,
            for_server(settings.gpus, f"server {name}") as (visible, gpu_descriptors),
        ):
            host, port = listener.getsockname()[:2]
            start = settings.launch(host, port, listener.fileno())
            start = replace(start, environment={**start.environment, **visible})
            if not start.inherits:
                listener.close()
            pid = spawn_supervisor(
                start,
                listener if start.inherits else None,
                server_dir,
                self._lock,
                settings.idle_timeout_s,
                gpu_descriptors,
            )
        address = f"[{host}]" if ":" in host else host
        url, now = f"http://{address}:{port}", time.time()
        identity = settings.dtype, settings.code, settings.device, settings.limits
        record = ServerRecord(name, url, pid, settings.engine, settings.model, now, *identity)
        write_json(server_dir / "server.json", asdict(record))
        return record

    def release(self, name: str, lease: IO[bytes], *, keep_idle: bool = False) -> None:
        """Release a lease. Without other leases the server stops, unless it is persistent.

        Args:
            keep_idle: let the server wait for the next lease until its idle timeout.
        """
        with self.guard():
            end_lease(lease)
            if keep_idle or self.is_persistent(name) or self.leases(name):
                return
            record = self._terminate(name)
        if record is not None:
            self._wait_dead(name)

    def stop(self, name: str) -> ServerRecord | None:
        """Stop a server, also if it is in use; None if none lives."""
        with self.guard():
            (self.server_dir(name) / "stay").unlink(missing_ok=True)
            record = self._terminate(name)
        if record is not None:
            self._wait_dead(name)
        return record

    def _terminate(self, name: str) -> ServerRecord | None:
        record = self.living(name)
        (self.server_dir(name) / "server.json").unlink(missing_ok=True)
        if record is not None:
            os.kill(record.pid, signal.SIGTERM)
        return record

    def _wait_dead(self, name: str) -> None:
        deadline = time.monotonic() + STOP_S
        while is_held(self.server_dir(name) / "alive"):
            if time.monotonic() > deadline:
                raise ServingError(f"server {name} does not stop; see {self.log(name)}")
            time.sleep(0.02)


def end_lease(lease: IO[bytes]) -> None:
    """End a lease."""
    Path(lease.name).unlink(missing_ok=True)
    lease.close()


def remove_stale(root: Path) -> list[str]:
    """Remove leases of dead processes and records of dead supervisors; returns one line for each.

    A supervisor removes its own leases. If the supervisor itself was killed, this function does it.
    """
    registry = Registry(root)
    if not registry.folder.is_dir():
        return []
    removed = []
    with registry.guard():
        for server_dir in sorted(path for path in registry.folder.iterdir() if path.is_dir()):
            for lease in sorted((server_dir / "leases").glob("*")):
                if remove_unless_held(lease):
                    removed.append(f"{server_dir.name}: lease {lease.name} expired, its holder has gone")
            if (server_dir / "server.json").is_file() and not is_held(server_dir / "alive"):
                (server_dir / "server.json").unlink()
                (server_dir / "stay").unlink(missing_ok=True)
                removed.append(f"{server_dir.name}: its supervisor has gone, the record is removed")
    return removed


def living(root: Path) -> list[str]:
    """Names of servers that live now."""
    registry = Registry(root)
    return [name for name in registry.names() if registry.living(name) is not None]
