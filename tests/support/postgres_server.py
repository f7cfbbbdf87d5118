"""A real PostgreSQL on this machine, from Debian's ``postgresql``; everything it writes lies in one folder of /tmp."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

USER, PASSWORD = "paco", "a-password"  # of a server that lives as long as a test


PROGRAMS = ("initdb", "postgres", "pg_isready", "psql")


def _programs() -> Path | None:
    """The folder of all of them; Debian keeps them off the search path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if initdb := shutil.which("initdb"):
        folders.append(Path(initdb).parent)
    return next((folder for folder in folders if all((folder / name).exists() for name in PROGRAMS)), None)


def missing() -> str | None:
    """Why no server can be started here; None where one can."""
    if _programs() is None:
        return f"{', '.join(PROGRAMS)}: not installed (Debian: postgresql)"
    if not os.getuid():
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL does not run as root, and there is no user postgres"
    return None


class Postgres:
    """A server on a port of its own, which asks for a password."""

    def __init__(self, folder: Path) -> None:
        programs = _programs()
        assert programs is not None
        self._programs, self._data, self._log = programs, folder / "data", folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None
        secret = folder / "password"
        secret.write_text(PASSWORD)
        self._owner = {} if os.getuid() else {"user": "postgres", "group": "postgres", "extra_groups": []}
        if self._owner:
            for path in (folder, secret):
                shutil.chown(path, "postgres", "postgres")
        options = ["--pgdata", str(self._data), "--username", USER, "--pwfile", str(secret), "--auth", "scram-sha-256"]
        command = [str(programs / "initdb"), *options, "--encoding", "UTF8", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd=folder, **self._owner)

    def url(self, database: str) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        sockets = ["-c", f"unix_socket_directories={self._data}", "-c", "listen_addresses=127.0.0.1"]
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port), *sockets]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._data, start_new_session=True, **self._owner
            )
        deadline = time.monotonic() + 60
        ready = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready).returncode:
            assert time.monotonic() < deadline and self._process.poll() is None, self._log.read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL to all its processes at once, as a power cut does."""
        if self._process is not None:
            for number in (*self._children(), self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _children(self) -> list[int]:
        """Each is a session of its own."""
        assert self._process is not None
        result = subprocess.run(["pgrep", "-P", str(self._process.pid)], capture_output=True, text=True)
        return [int(number) for number in result.stdout.split()]

    def sql(self, database: str, text: str) -> str:
        """What ``psql`` prints of a statement, without headings."""
        words = [str(self._programs / "psql"), "--no-psqlrc", "-Atc", text, self.url(database)]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()

    def create_new(self, prefix: str) -> str:
        """A new, empty database; its URL."""
        there = int(self.sql("postgres", "SELECT count(*) FROM pg_database"))
        database = f"{prefix}{there}"
        self.sql("postgres", f'CREATE DATABASE "{database}"')
        return self.url(database)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server that is up; its folder is not pytest's, which only its owner may enter."""
    with tempfile.TemporaryDirectory(prefix="paco-postgres-") as folder:
        server = Postgres(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.kill()
