"""A fork of the server that becomes ``python -m paco_core run STAGE`` as its client would have been."""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Any

from paco_core.io.parent_process import die_with_parent
from paco_core.runtime.preloading.wire import send

#: Packages of the project: a stage reads them anew, so that what its code files say of them is what it runs.
_OURS = {"dagster_dvc", "dvc_project", "paco_core", "pipelines"}


@dataclass(frozen=True)
class Job:
    """What a fork is to run: a client's request, its standard files, the connection to it, and the server's id."""

    request: dict[str, Any]
    files: list[int]
    connection: socket.socket
    server: int


def become(job: Job) -> None:
    """Run the job as the main program of this process, which ends as any Python does."""
    request = job.request
    os.setsid()  # a group of its own: the client passes signals on to all of it
    die_with_parent(job.server, signal.SIGKILL)
    _take_files(job.files)
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:], sys.orig_argv[:] = request["arguments"], request["original_arguments"]
    sys.path[:] = request["path"]
    _forget_ours()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # as at its import; Python's own generator does so by itself
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    with job.connection:
        send(job.connection, {"process": os.getpid()})
    runpy.run_module("paco_core", run_name="__main__", alter_sys=True)


def _take_files(files: list[int]) -> None:
    """Put the client's standard input, output and errors in place of the server's.

    ``sys.stdout`` and the like stay the same objects: log handlers of libraries hold them.
    """
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    assert hasattr(sys.stdout, "reconfigure")
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())


def _forget_ours() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
        del sys.modules[name]
    importlib.invalidate_caches()
