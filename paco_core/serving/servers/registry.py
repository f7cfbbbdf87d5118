"""Which servers live: one folder a served name below ``.paco/serving``, guarded by file locks.

``<name>/server.json`` says where the server listens, ``alive`` is locked while its supervisor lives,
``leases/`` holds one locked file a user, ``stay`` marks a server that people started, ``server.log``
is what it printed. Whether something lives is shown by locks, never by process ids, which are reused.
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
    dtype: str = ""  # number format that it reckons in
    code: str = ""  # digest of what computes its scores: our code, or the packages of its engine's environment
    device: str = ""  # kind that it computes on
    limits: str = ""  # digest of what it refuses to answer


@dataclass(frozen=True)
class ServerSettings:
    """How to start a server where none of its name lives: ``launch(host, port, descriptor)`` gives the command.

    It ends when nobody has leased it for ``linger_s`` seconds.
    """

    engine: str
    model: str
    host: str
    port: int
    dtype: str
    linger_s: float
    launch: Callable[[str, int, int], Launch]
    code: str = ""
    gpus: int = 0  # that it computes on
    device: str = ""
    limits: str = ""

    def differs(self, record: ServerRecord) -> str | None:
        """Why a living server is not the one that this would start, None where it is: its answers would be others.

        Depends on: weights, code, engine, number format, device, and what is refused. Holds: the name, which carries
        the weights' fingerprint and by which the record was found, and the other five. What moves scores by rounding
        at most (threads, batches, how many GPUs) is left out, and so is where it listens.
        """
        if (record.engine, record.dtype) != (self.engine, self.dtype):
            return f"is {record.engine} {record.dtype}, params.yaml asks for {self.engine} {self.dtype}"
        if record.device != self.device:
            return f"computes on {record.device or 'an unknown device'}, params.yaml asks for {self.device}"
        if record.limits != self.limits:
            return "refuses other questions than max_model_len of execution.serving says now"
        return "runs other code than this project holds now" if record.code != self.code else None


class Registry:
    """The servers of one project, which its experiments share."""

    def __init__(self, root: Path) -> None:
        self.root = owner_root(root)
        self.folder = self.root / FOLDER
        self._lock = self.folder / "lock"

    def home(self, name: str) -> Path:
        return self.folder / name

    def log(self, name: str) -> Path:
        return self.home(name) / "server.log"

    def guard(self) -> AbstractContextManager[object]:
        """Hold the registry's lock."""
        return locked(self._lock)

    def names(self) -> list[str]:
        """Every name that has a folder, living or not, the last used last."""
        homes = [path.parent for path in self.folder.glob("*/server.log")]
        return [home.name for home in sorted(homes, key=lambda h: (h / "server.log").stat().st_mtime)]

    def is_recorded(self, name: str) -> bool:
        """Whether a server of that name was started and not ended since: it lives, or it died."""
        return (self.home(name) / "server.json").is_file()

    def living(self, name: str) -> ServerRecord | None:
        """The record of a server whose supervisor lives."""
        if not self.is_recorded(name) or not is_held(self.home(name) / "alive"):
            return None
        try:
            return ServerRecord(**read_json(self.home(name) / "server.json"))
        except DataError:
            if self.is_recorded(name):
                raise
            return None  # it ended at this moment

    def leases(self, name: str) -> int:
        return sum(is_held(path) for path in (self.home(name) / "leases").glob("*"))

    def is_kept(self, name: str) -> bool:
        return (self.home(name) / "stay").exists()

    def join(self, name: str, recipe: ServerSettings, stay: bool = False) -> tuple[ServerRecord, IO[bytes]]:
        """Take a lease of a living server of that name, or start one; safe in a race of many processes.

        Returns the record and the lease: a locked file that is held while open.

        One of another engine, number format or code ends first, unless it is in use.

        Raises:
            ServingError: when the port is taken, the engine is missing, or such a server is in use.
        """
        deadline = time.monotonic() + STOP_S
        while True:
            with self.guard():
                record = self.living(name)
                if record is not None and (differs := recipe.differs(record)):
                    self._refuse_in_use(record, differs)
                    self._retire(name)
                    record = None
                if record is not None or not is_held(self.home(name) / "alive"):
                    return self._enter(name, record, recipe, stay)
            if time.monotonic() > deadline:  # a predecessor is still ending; it may need the lock for that
                raise ServingError(f"server {name} does not stop; see {self.log(name)}")
            time.sleep(0.02)

    def _refuse_in_use(self, record: ServerRecord, differs: str) -> None:
        if self.is_kept(record.name) or self.leases(record.name):
            raise ServingError(
                f"server {record.name} (process {record.pid}) {differs}, and is in use; wait until it ends, or end it "
                f"with `paco serve down {record.name}`"
            )

    def _enter(
        self, name: str, record: ServerRecord | None, recipe: ServerSettings, stay: bool
    ) -> tuple[ServerRecord, IO[bytes]]:
        home = self.home(name)
        lease = hold(home / "leases" / f"{os.getpid()}-{uuid.uuid4().hex[:8]}")
        if record is None:
            (home / "stay").unlink(missing_ok=True)
            try:
                record = self._start(name, recipe)
            except BaseException:
                release(lease)
                raise
        if stay:
            (home / "stay").touch()
        return record, lease

    def _start(self, name: str, recipe: ServerSettings) -> ServerRecord:
        home = self.home(name)
        if not is_loopback(recipe.host) and not os.environ.get(API_KEY):
            raise ServingError(
                f"execution.serving.host {recipe.host} lets other machines in; set {API_KEY} to a secret, here and "
                "for the clients, or serve on 127.0.0.1"
            )
        with bind(recipe.host, recipe.port) as bound, for_server(recipe.gpus, f"server {name}") as (visible, held):
            host, port = bound.getsockname()[:2]
            start = recipe.launch(host, port, bound.fileno())
            start = replace(start, environment={**start.environment, **visible})
            if not start.inherits:
                bound.close()
            pid = spawn_supervisor(start, bound if start.inherits else None, home, self._lock, recipe.linger_s, held)
        address = f"[{host}]" if ":" in host else host
        url, now = f"http://{address}:{port}", time.time()
        made = recipe.dtype, recipe.code, recipe.device, recipe.limits
        record = ServerRecord(name, url, pid, recipe.engine, recipe.model, now, *made)
        write_json(home / "server.json", asdict(record))
        return record

    def leave(self, name: str, lease: IO[bytes], *, lingers: bool = False) -> None:
        """Give a lease back; the last one out stops the server, unless people keep it or it lingers for the next."""
        with self.guard():
            release(lease)
            if lingers or self.is_kept(name) or self.leases(name):
                return
            record = self._retire(name)
        if record is not None:
            self._wait_dead(name)

    def stop(self, name: str) -> ServerRecord | None:
        """Stop a server even where others use it; None when none lives."""
        with self.guard():
            (self.home(name) / "stay").unlink(missing_ok=True)
            record = self._retire(name)
        if record is not None:
            self._wait_dead(name)
        return record

    def _retire(self, name: str) -> ServerRecord | None:
        record = self.living(name)
        (self.home(name) / "server.json").unlink(missing_ok=True)
        if record is not None:
            os.kill(record.pid, signal.SIGTERM)
        return record

    def _wait_dead(self, name: str) -> None:
        deadline = time.monotonic() + STOP_S
        while is_held(self.home(name) / "alive"):
            if time.monotonic() > deadline:
                raise ServingError(f"server {name} does not stop; see {self.log(name)}")
            time.sleep(0.02)


def release(lease: IO[bytes]) -> None:
    """End a lease."""
    Path(lease.name).unlink(missing_ok=True)
    lease.close()


def remove_stale(root: Path) -> list[str]:
    """Remove leases whose holders have gone and records whose supervisors have gone; one line each.

    A supervisor removes its own leases. If the supervisor itself was killed, this function does it.
    """
    registry = Registry(root)
    if not registry.folder.is_dir():
        return []
    removed = []
    with registry.guard():
        for home in sorted(path for path in registry.folder.iterdir() if path.is_dir()):
            for lease in sorted((home / "leases").glob("*")):
                if remove_unless_held(lease):
                    removed.append(f"{home.name}: lease {lease.name} expired, its holder has gone")
            if (home / "server.json").is_file() and not is_held(home / "alive"):
                (home / "server.json").unlink()
                (home / "stay").unlink(missing_ok=True)
                removed.append(f"{home.name}: its supervisor has gone, the record is removed")
    return removed


def living(root: Path) -> list[str]:
    """Names of servers that live now."""
    registry = Registry(root)
    return [name for name in registry.names() if registry.living(name) is not None]
