"""Leases of this machine's GPUs: a kernel lock on one file per GPU, for all projects of a user.

:data:`STAGES` and :data:`SERVERS` list the GPUs that stages and reward servers may take. ``CUDA_VISIBLE_DEVICES`` lists
the GPUs of this process. All three contain UUIDs, because CUDA numbers the fastest GPU first and nvidia-smi by slot.

A lock lives as long as any process has its file open. So the launcher that replaces a stage keeps it, and a killed
process releases it.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from dvc_project.file_locks import hold, is_held, locked, remove_unless_held, try_hold
from paco_core.io.files import DataError
from paco_core.runtime import nvidia_smi
from paco_core.runtime.nvidia_smi import Gpu, Listing

VISIBLE, STAGES, SERVERS = "CUDA_VISIBLE_DEVICES", "PACO_STAGE_GPUS", "PACO_SERVER_GPUS"
POLL_S = 0.2
QUEUE = "queue"  # the folder of tickets


@dataclass(frozen=True)
class Machine:
    """The GPUs of stages and of reward servers. If ``servers`` is empty, servers use the GPUs of stages."""

    stages: tuple[Gpu, ...] = ()
    servers: tuple[Gpu, ...] = ()


def visible(listing: Listing | None = None) -> list[Gpu]:
    """The GPUs that this process may use, by its environment and nvidia-smi (``listing``; None = query it now).

    A number in CUDA_VISIBLE_DEVICES is one of nvidia-smi's.
    """
    gpus = (listing or nvidia_smi.list_gpus()).gpus
    visible_devices = os.environ.get(VISIBLE)
    if visible_devices is None:
        return gpus
    words = [word.strip() for word in visible_devices.split(",")]
    if "-1" in words:  # as CUDA reads it: the list ends there
        words = words[: words.index("-1")]
    return [_find_gpu(word, gpus) for word in words if word]


def _find_gpu(word: str, gpus: Sequence[Gpu]) -> Gpu:
    """The GPU of an entry of CUDA_VISIBLE_DEVICES: a number, a UUID, or the beginning of a UUID."""
    exact = [gpu for gpu in gpus if word in (gpu.number, gpu.name)]
    begun = [gpu for gpu in gpus if word.startswith(("GPU-", "MIG-")) and gpu.name.startswith(word)]
    return next(iter(exact or (begun if len(begun) == 1 else [])), Gpu(word, word))


def divide(gpus: Sequence[Gpu], chosen: Sequence[int] | None, servers: int | None, needed: int) -> Machine:
    """Divide the visible GPUs between stages and reward servers.

    Args:
        chosen: numbers of the GPUs to use, in this order; None = all.
        servers: number of GPUs for reward servers only, the last ones; None = ``needed`` if stages keep at least one.
        needed: number of GPUs of one server; 0 if it computes on the CPU.

    Raises:
        DataError: when a chosen GPU is not visible, or no GPU is left for the stages.
    """
    by_number = {gpu.number: gpu for gpu in gpus}
    if chosen is not None:
        if lost := [str(number) for number in chosen if str(number) not in by_number]:
            raise DataError(
                f"execution.devices.gpus: no GPU {', '.join(lost)} is visible; "
                f"there are: {', '.join(by_number) or 'none'}"
            )
        gpus = [by_number[str(number)] for number in chosen]
    if servers is None:
        servers = needed if len(gpus) > needed else 0
    elif gpus and servers >= len(gpus):
        raise DataError(
            f"execution.devices.servers: {servers} of {len(gpus)} GPUs for reward servers leaves none for the stages"
        )
    num_stages = len(gpus) - servers if gpus else 0
    return Machine(tuple(gpus[:num_stages]), tuple(gpus[num_stages:]))


def announce(machine: Machine) -> None:
    """List the machine's GPUs in the environment, for the servers that this process starts."""
    os.environ[STAGES] = _names(machine.stages)
    os.environ[SERVERS] = _names(machine.servers)


def acquire(gpus: Sequence[Gpu], count: int, holder: str, log: Callable[[str], object]) -> list[IO[bytes]]:
    """Lease ``count`` free GPUs for this process; wait until enough are free.

    Processes that wait for some of the same GPUs are served in the order of their arrival. This function sets
    CUDA_VISIBLE_DEVICES, so call it before CUDA is used.

    Args:
        holder: name of the computation, for the messages of waiting processes.
        log: prints that this process waits.

    Returns:
        The leases: streams. A GPU is free again when every process that inherited its stream has closed it.

    Raises:
        DataError: when the machine has fewer GPUs.
    """
    if count > len(gpus):
        numbers = ", ".join(gpu.number for gpu in gpus)
        raise DataError(
            f"{holder} needs {count} GPUs, and stages have {len(gpus)} here ({numbers or 'none'}): lower its "
            "number of processes, or see devices in params.yaml"
        )
    waited = False
    with _enqueue(gpus) as ticket:
        while not (leases := _try_acquire(gpus, count, holder, ticket)):
            if not waited:
                reason = _holders(gpus) or "other processes wait for them, too"
                log(f"waiting for {'a GPU' if count == 1 else f'{count} GPUs'}: {reason}")
                waited = True
            time.sleep(POLL_S)
    os.environ[VISIBLE] = _names(gpu for gpu, _ in leases)
    for _, stream in leases:
        os.set_inheritable(stream.fileno(), True)
    return [stream for _, stream in leases]


@contextmanager
def _enqueue(gpus: Sequence[Gpu]) -> Iterator[Path]:
    """A ticket in the queue: a file that lists these GPUs, locked while its process waits. Names sort by arrival."""
    folder = _folder()
    with locked(folder / "guard"):
        stream = hold(folder / QUEUE / f"{time.time_ns():020d}-{os.getpid()}-{threading.get_ident()}")
        stream.write("\n".join(gpu.name for gpu in gpus).encode())
        stream.flush()
    ticket = Path(stream.name)
    with stream:
        try:
            yield ticket
        finally:
            with locked(folder / "guard"):  # another process reads the tickets under this lock
                ticket.unlink(missing_ok=True)


def _is_next(ticket: Path, gpus: Sequence[Gpu]) -> bool:
    """Whether no earlier ticket of a living process lists one of these GPUs."""
    names = {gpu.name for gpu in gpus}
    earlier = sorted(path for path in ticket.parent.iterdir() if path.name < ticket.name)
    return not any(
        names.intersection(path.read_text().splitlines()) for path in earlier if not remove_unless_held(path)
    )


def _try_acquire(
    gpus: Sequence[Gpu], count: int, holder: str, ticket: Path | None = None
) -> list[tuple[Gpu, IO[bytes]]]:
    """The first ``count`` free GPUs with their locks; none if fewer are free or an earlier ``ticket`` comes first."""
    folder = _folder()
    # One process at a time: two who want both of two would have one each, and wait for ever.
    with locked(folder / "guard"), ExitStack() as undo:
        if ticket is not None and not _is_next(ticket, gpus):
            return []
        leases: list[tuple[Gpu, IO[bytes]]] = []
        for gpu in gpus:
            if len(leases) < count and (stream := try_hold(_file(folder, gpu))) is not None:
                undo.callback(stream.close)
                leases.append((gpu, stream))
        if len(leases) < count:
            return []
        undo.pop_all()
        for _, stream in leases:
            stream.truncate(0)
            stream.write(f"{holder}, process {os.getpid()}".encode())
            stream.flush()
        return leases


@contextmanager
def for_server(count: int, name: str) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """The environment of a server on ``count`` GPUs, and the file descriptors that it inherits as leases.

    The server gets free GPUs. If fewer are free, it shares the last GPUs with another server. If no GPUs are reserved
    for servers, it uses those of this process.
    """
    numbers = [number for number in os.environ.get(SERVERS, "").split(",") if number]
    if not (count and numbers):
        yield {}, ()
        return
    gpus = nvidia_smi.list_gpus().gpus
    candidates = [_find_gpu(number, gpus) for number in numbers]
    leases = _try_acquire(candidates, count, name)
    with ExitStack() as stack:
        for _, stream in leases:
            stack.enter_context(stream)
        chosen = [gpu for gpu, _ in leases] or candidates[-count:]
        yield {VISIBLE: _names(chosen)}, tuple(stream.fileno() for _, stream in leases)


def _names(gpus: Iterable[Gpu]) -> str:
    """A value of CUDA_VISIBLE_DEVICES."""
    return ",".join(gpu.name for gpu in gpus)


def _holders(gpus: Sequence[Gpu]) -> str:
    """The holder of each leased GPU, as its lock file states."""
    folder = _folder()
    locked_files = [(gpu, file) for gpu in gpus if is_held(file := _file(folder, gpu))]
    return "; ".join(f"GPU {gpu.number} has {file.read_text(errors='replace')}" for gpu, file in locked_files)


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"paco-gpus-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise DataError(f"{folder}: belongs to another user, but contains this user's locks of GPUs. Remove it")
    return folder


def _file(folder: Path, gpu: Gpu) -> Path:
    return folder / f"{gpu.name.replace('/', '_')}.lock"
