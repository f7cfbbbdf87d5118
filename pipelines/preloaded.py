"""The libraries of a run's stages, imported once: see :mod:`paco_core.runtime.preloading`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dagster_dvc.process import end_group, start_group
from dvc_project.project import DvcProject
from paco_core.config.params import PARAMS_FILE, Params, ParamsError, load
from paco_core.io import gpus
from paco_core.io.files import DataError
from paco_core.runtime import launchers
from paco_core.runtime.code.stage_code import StageCodes
from paco_core.runtime.placement import DEVICES
from paco_core.runtime.preloading import SOCKET, STAGES

LIBRARY, LEAST = "torch", 3  # stages with this one are worth a server, from this many on
MOST_BYTES = 103  # of a socket's path; Linux takes 107
GRACE_SECONDS = 8.0
_BACKLOG = 64


@contextmanager
def preloaded(project: DvcProject, names: Iterable[str], environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment of the stages ``names``: they find a server in it where it pays.

    It does where several use torch, on processors alone: importing a library may ask the driver of a GPU, and CUDA does
    not survive a fork. The server ends with the block, and with this process.
    """
    try:
        params = load(project.root / PARAMS_FILE)
        stages = _importing(project, names) if _is_possible(params) else set()
    except (DataError, ParamsError):  # the stages report it
        stages = set()
    if len(stages) < LEAST:
        yield dict(environment)
        return
    folder = Path(tempfile.mkdtemp(prefix="paco-"))  # only this user gets into it
    place = folder / "socket"
    try:
        if len(os.fsencode(place)) > MOST_BYTES:
            yield dict(environment)
            return
        with _server(place, project.root, params.threads, environment):
            yield {
                **environment,
                SOCKET: str(place),
                STAGES: ",".join(sorted({name.partition("@")[0] for name in stages})),
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_possible(params: Params) -> bool:
    local = launchers.chosen() == "local" and all(device(params) == "cpu" for device in DEVICES.values())
    return local and hasattr(os, "pidfd_open") and not gpus.visible()


def _importing(project: DvcProject, names: Iterable[str]) -> set[str]:
    """Those of the stages that use the library, by their code."""
    graph, codes = project.stages, StageCodes.present(project.root).files()
    return {name for name in names if any(dep in codes and LIBRARY in codes[dep].libraries for dep in graph[name].deps)}


@contextmanager
def _server(place: Path, root: Path, threads: int, environment: Mapping[str, str]) -> Iterator[None]:
    """Clients reach its socket from the start, and wait until it has imported all."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen(_BACKLOG)
        number = listener.fileno()
        server = start_group(
            [sys.executable, "-m", "paco_core.runtime.preloading.server", str(number), str(os.getpid()), str(threads)],
            cwd=root, env=dict(environment), pass_fds=(number,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        yield
    finally:
        end_group(server, GRACE_SECONDS)
