"""Placement of stages and reward servers on the GPUs of this machine, by ``devices`` in params.yaml."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.runtime import gpus, launchers, nvidia_smi
from paco_core.runtime.nvidia_smi import Gpu, Listing


def server_gpus(params: Params) -> int:
    """The number of GPUs of one reward server."""
    return params.serving.tensor_parallel if params.serving.device.startswith("cuda") else 0


def divide_gpus(params: Params, listing: Listing | None = None) -> gpus.Machine:
    """Divide the visible GPUs (``listing``; None = query them now) between stages and reward servers.

    Raises:
        DataError: as :func:`paco_core.runtime.gpus.divide`.
    """
    return gpus.divide(gpus.visible(listing), params.devices.gpus, params.devices.servers, server_gpus(params))


def acquire_gpus(
    device: str, count: int, holder: str, params: Params, log: Callable[[str], object] = print
) -> list[IO[bytes]]:
    """Lease ``count`` GPUs if the device is any GPU (``cuda``), and list those of servers in the environment.

    A numbered device (``cuda:1``) is used without a lease.

    Args:
        holder: see :func:`paco_core.runtime.gpus.acquire`.

    Returns:
        The leases, open streams.

    Raises:
        DataError: when there are fewer GPUs, or ``devices`` does not fit this machine.
    """
    if not (device.startswith("cuda") or server_gpus(params)):
        return []
    listing = nvidia_smi.list_gpus()
    if listing.trouble:
        log(f"nvidia-smi: {listing.trouble}; a GPU that it does not list is not reserved for this computation")
    machine = divide_gpus(params, listing)
    gpus.announce(machine)
    return gpus.acquire(machine.stages, count, holder, log) if device == "cuda" and machine.stages else []


class _ProcessGpu:
    """The GPU of this process: always the first one that it leased, because CUDA reads CUDA_VISIBLE_DEVICES once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.gpus: tuple[Gpu, ...] = ()
        self.leases: list[IO[bytes]] = []


_PROCESS_GPU = _ProcessGpu()


@contextmanager
def one_gpu(
    devices: Sequence[str], holder: str, params: Params, log: Callable[[str], object] = print
) -> Iterator[None]:
    """Lease one GPU for this process during the block, if one of its devices is any GPU (``cuda``).

    Enter it before CUDA is used. An import of diffusers uses CUDA, so modules import it when they load a pipeline. All
    users in one process share the GPU; the last one releases it.

    Raises:
        DataError: as :func:`acquire_gpus`; also any exception that ``log`` raises to avoid waiting.
    """
    if launchers.current_launcher() == "ray":  # Ray places the work
        yield
        return
    device = "cuda" if "cuda" in devices else devices[0]
    with _PROCESS_GPU.lock:
        if not _PROCESS_GPU.users:
            if _PROCESS_GPU.gpus and device == "cuda":
                _PROCESS_GPU.leases = gpus.acquire(_PROCESS_GPU.gpus, 1, holder, log)
            else:
                _PROCESS_GPU.leases = acquire_gpus(device, 1, holder, params, log)
                _PROCESS_GPU.gpus = tuple(gpus.visible()) if _PROCESS_GPU.leases else ()
        if _PROCESS_GPU.leases:
            _PROCESS_GPU.users += 1
        is_user = bool(_PROCESS_GPU.leases)
    try:
        yield
    finally:
        with _PROCESS_GPU.lock:
            if is_user:
                _PROCESS_GPU.users -= 1
                if not _PROCESS_GPU.users:
                    for lease in _PROCESS_GPU.leases:
                        lease.close()
                    _PROCESS_GPU.leases = []


def announce_servers(root: Path) -> None:
    """List the GPUs of reward servers in the environment, unless a stage has done so.

    Outside a project, a server uses the visible GPUs.
    """
    if gpus.SERVERS not in os.environ and (root / PARAMS_FILE).is_file():
        params = load(root / PARAMS_FILE)
        if server_gpus(params):
            gpus.announce(divide_gpus(params))
