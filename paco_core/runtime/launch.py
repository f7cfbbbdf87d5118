"""Start a stage: the one body behind the terminal, Dagster and the schedules."""

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
from paco_core.io.imports import rarely_collected
from paco_core.runtime import launchers
from paco_core.runtime.code.stage_code import StageCode, StageCodes
from paco_core.runtime.context import StageContext, open_stage, stage_label
from paco_core.runtime.launchers.rendezvous import launched_rank, lost_ranks
from paco_core.runtime.placement import take_gpus
from paco_core.runtime.process import prepare
from paco_core.runtime.rounds import params_of, placed
from paco_core.runtime.stage import Stage

LOCKS = Path(".paco") / "stages"


@dataclass(frozen=True)
class Rank:
    """What a further rank of a training knows: what the first one's context says, without its reports."""

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
        """The absolute path of an input; the first rank has said where it is missing."""
        return self.root / self.place(path)


class StageFile(Protocol):
    """A module of ``paco_core/stages``: what it declares, and what it does. ``assist(rank)`` runs on the further ranks
    of a stage that declares ``processes``, with a :class:`Rank`; the others have none.
    """

    STAGE: Stage
    assist: Any

    def run(self, ctx: StageContext, /) -> None:
        """Read inputs, compute, write outs and report."""


def run_stage(name: str, stage: StageFile, item: str | None, root: Path) -> None:
    """Run a stage inside its context, on GPUs and processes as its declaration says.

    Raises:
        ParamsError: for an unknown item or launcher, or invalid parameters.
        DataError: when an input is missing or malformed, or another process runs this stage, or an out
            cannot be written; when the environment's rank is not one that a launcher gave this stage.
    """
    _check_item(name, item, root)
    launcher, rank, label = launchers.chosen(), launched_rank(), stage_label(name, item)
    if rank:
        if stage.STAGE.processes is None:
            raise DataError(
                f"{label} runs in one process, but by RANK={rank} this is a further one: run `unset RANK WORLD_SIZE`, "
                "or leave the launcher out"
            )
        _assist(name, stage, item, root)
        return
    if (entry := stages_of(root).get(label)) is not None:
        for out in entry.outs:
            targets.writable(root / out.path)
    with ExitStack() as gpus:
        if rank is None:
            for lease in _placed(name, stage.STAGE, item, root, launcher):
                gpus.enter_context(lease)
        with only_run(root, label), open_stage(name, item, root, stage.STAGE) as ctx, lost_ranks(), rarely_collected():
            stage.run(ctx)


def _placed(name: str, stage: Stage, item: str | None, root: Path, launcher: launchers.Name) -> list[IO[bytes]]:
    """Take the GPUs that the stage computes on; turn into the launcher of its processes where there are several.

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
    leases = [] if launcher == "ray" else take_gpus(device, processes, holder, params)
    if launches:
        prepare(params.threads)  # else accelerate gives each rank one thread
        accelerated.replace_process(name, item, root, device, None if launcher == "accelerate" else processes)
    return leases


def _check_item(name: str, item: str | None, root: Path) -> None:
    declared = [stage.item for stage in stages_of(root).values() if stage.group == name]
    items = [known for known in declared if known is not None]
    if declared and not items and item is not None:
        raise ParamsError(f"stage {name} has no items: run it without --item {item}")
    if items and item not in items:
        found = "needs --item" if item is None else f"has no item {item!r}"
        raise ParamsError(f"stage {name} {found}; items (dvc.yaml): {', '.join(items)}")


def _assist(name: str, stage: StageFile, item: str | None, root: Path) -> None:
    """A further rank of a training that accelerate or torchrun started; it neither reports nor writes files."""
    params = params_of(load(root / PARAMS_FILE), name, item)
    prepare(params.threads)
    with lost_ranks(), rarely_collected():
        stage.assist(Rank(params, root, name, item))


def lock_file(root: Path, label: str) -> Path:
    return root / LOCKS / f"{label}.lock"


@contextmanager
def only_run(root: Path, label: str) -> Iterator[None]:
    """Be the only process that runs this stage of this project.

    DVC's own locks end with DVC, but a stage lives on if DVC is killed with ``kill -9``.

    Raises:
        DataError: when another one does, with its process id and what to do.
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
    if not process:  # it took the lock a moment ago
        return f"stage {label} has just been started by another process: wait for it, and run again"
    where = "" if host == socket.gethostname() else f" on {host}"  # a folder that a cluster shares
    return (
        f"stage {label} still runs as process {process}{where} (started by a run that was killed, perhaps): "
        f"wait for it, or end it with `kill {process}`{where}, and run again"
    )
