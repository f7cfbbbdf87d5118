"""Start of a stage, for the terminal, Dagster and schedules."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from dvc_project.file_locks import hold
from dvc_project.project import stages_of
from paco_core.config.params import PARAMS_FILE, Params, ParamsError, load
from paco_core.io import targets
from paco_core.io.files import DataError
from paco_core.io.imports import gc_relaxed
from paco_core.runtime import launchers
from paco_core.runtime.code.stage_code import StageCode, StageCodes
from paco_core.runtime.context import StageContext, open_stage, stage_label
from paco_core.runtime.launchers.rendezvous import launched_rank, lost_ranks
from paco_core.runtime.placement import acquire_gpus
from paco_core.runtime.process import prepare_process
from paco_core.runtime.rounds import params_of, placed
from paco_core.runtime.stage import Stage

LOCKS = Path(".paco") / "stages"


@dataclass(frozen=True)
class Rank:
    """The context of a rank other than the first, which does not report."""

    params: Params
    root: Path
    name: str
    item: str | None

    @property
    def label(self) -> str:
        return stage_label(self.name, self.item)

    @property
    def code(self) -> StageCode:
        return StageCodes.present(self.root).of(self.name, self.item)

    def place(self, path: Path) -> Path:
        """See :meth:`StageContext.place`."""
        return placed(self.root, self.label, path)

    def read(self, path: Path) -> Path:
        """The absolute path of an input; the first rank reports a missing one."""
        return self.root / self.place(path)


class StageFile(Protocol):
    """A module of ``paco_core/stages``.

    ``assist(rank)`` runs on all ranks but the first, with a :class:`Rank`. Only stages that declare ``processes`` have
    it.
    """

    STAGE: Stage
    assist: Any

    def run(self, ctx: StageContext, /) -> None:
        """Read inputs, compute, write outs and report."""


def launch_stage(name: str, stage: StageFile, item: str | None, root: Path) -> None:
    """Run a stage inside its context, on the GPUs and processes that it declares.

    Raises:
        ParamsError: for an unknown item or launcher, or invalid parameters.
        DataError: when an input is missing or malformed, or another process runs this stage, or an out
            cannot be written; when the environment's rank is not one that a launcher gave this stage.
    """
    _check_item(name, item, root)
    launcher, rank, label = launchers.current_launcher(), launched_rank(), stage_label(name, item)
    if rank:
        if stage.STAGE.processes is None:
            raise DataError(
                f"{label} runs in one process, but RANK={rank} belongs to a second one: run `unset RANK WORLD_SIZE`, "
                "or start the stage without a launcher"
            )
        _assist(name, stage, item, root)
        return
    if (entry := stages_of(root).get(label)) is not None:
        for out in entry.outs:
            targets.writable(root / out.path)
    with ExitStack() as gpus:
        if rank is None:
            for lease in _place_stage(name, stage.STAGE, item, root, launcher):
                gpus.enter_context(lease)
        with only_run(root, label), open_stage(name, item, root, stage.STAGE) as ctx, lost_ranks(), gc_relaxed():
            stage.run(ctx)


def _place_stage(name: str, stage: Stage, item: str | None, root: Path, launcher: launchers.Name) -> list[IO[bytes]]:
    """Lease the GPUs of the stage. If it has several processes, replace this process by their launcher.

    On a Ray cluster, Ray places the work.
    """
    from paco_core.runtime.launchers import accelerated

    if stage.device is None:
        return []
    params = load(root / PARAMS_FILE)
    device = stage.device(params)
    processes = stage.processes(params) if stage.processes else 1
    launches = stage.processes is not None and (launcher == "accelerate" or processes > 1)
    if launches and launcher == "accelerate":
        total, machines = accelerated.configured_processes(root, device)
        processes = total // machines  # on this machine
    holder = f"{stage_label(name, item)} of {root}"
    leases = [] if launcher == "ray" else acquire_gpus(device, processes, holder, params)
    if launches:
        prepare_process(params.threads)  # otherwise accelerate gives each rank one thread
        accelerated.replace_process(name, item, root, device, None if launcher == "accelerate" else processes)
    return leases


def _check_item(name: str, item: str | None, root: Path) -> None:
    declared = [stage.item for stage in stages_of(root).values() if stage.group == name]
    items = [declared_item for declared_item in declared if declared_item is not None]
    if declared and not items and item is not None:
        raise ParamsError(f"stage {name} has no items: run it without --item {item}")
    if items and item not in items:
        problem = "needs --item" if item is None else f"has no item {item!r}"
        raise ParamsError(f"stage {name} {problem}; items (dvc.yaml): {', '.join(items)}")


def _assist(name: str, stage: StageFile, item: str | None, root: Path) -> None:
    """Run a rank other than the first, which accelerate or torchrun started. It does not report or write files."""
    params = params_of(load(root / PARAMS_FILE), name, item)
    prepare_process(params.threads)
    with lost_ranks(), gc_relaxed():
        stage.assist(Rank(params, root, name, item))


def lock_file(root: Path, label: str) -> Path:
    return root / LOCKS / f"{label}.lock"


@contextmanager
def only_run(root: Path, label: str) -> Iterator[None]:
    """Lock this stage of this project for this process.

    DVC's own locks end with DVC, but a stage continues to run if DVC is killed with ``kill -9``.

    Raises:
        DataError: when another process runs the stage, with its process id and the remedy.
    """
    path = lock_file(root, label)
    try:
        stream = hold(path)
    except BlockingIOError:
        raise DataError(_under_way(label, path)) from None
    with stream:
        stream.truncate(0)
        stream.write(f"{os.getpid()} {socket.gethostname()}".encode())
        stream.flush()
        yield


def _under_way(label: str, path: Path) -> str:
    process, _, host = path.read_text().partition(" ")
    if not process:  # it acquired the lock a moment ago
        return f"stage {label} has just been started by another process: wait for it, and run again"
    host_suffix = "" if host == socket.gethostname() else f" on {host}"  # a folder that a cluster shares
    return (
        f"stage {label} still runs as process {process}{host_suffix} (started by a run that was killed, perhaps): "
        f"wait for it, or end it with `kill {process}`{host_suffix}, and run again"
    )
