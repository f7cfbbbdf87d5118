"""Places stages and reward servers on the GPUs of this machine, as ``devices`` in params.yaml divides them."""

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
    """GPUs that one reward server computes on."""
    return params.serving.tensor_parallel if params.serving.device.startswith("cuda") else 0


def machine_of(params: Params, listing: Listing | None = None) -> gpus.Machine:
    """The GPUs that are visible here (``listing``; None = asked now), divided between stages and reward servers.

    Raises:
        DataError: as :func:`paco_core.runtime.gpus.divide`.
    """
    return gpus.divide(gpus.visible(listing), params.devices.gpus, params.devices.servers, server_gpus(params))


def take_gpus(
    device: str, count: int, holder: str, params: Params, say: Callable[[str], object] = print
) -> list[IO[bytes]]:
    """Take as many GPUs as a computation needs, where its device is any GPU (``cuda``), and say which servers have.

    Returns what holds them while it is open. A numbered device (``cuda:1``) is taken at its word.

    Raises:
        DataError: when there are fewer GPUs, or ``devices`` does not fit this machine.
    """
    if not (device.startswith("cuda") or server_gpus(params)):
        return []
    listing = nvidia_smi.listed()
    if listing.trouble:
        say(f"nvidia-smi: {listing.trouble}; a GPU that it does not list is not reserved for this computation")
    machine = machine_of(params, listing)
    gpus.announce(machine)
    return gpus.take(machine.stages, count, holder, say) if device == "cuda" and machine.stages else []


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
    devices: Sequence[str], holder: str, params: Params, say: Callable[[str], object] = print
) -> Iterator[None]:
    """Within, this process has a GPU of its own where one of its devices is any GPU (``cuda``).

    To be entered before CUDA is used, which importing diffusers does: modules import it where they load a pipeline.
    All who compute in one process share the GPU; the last to leave gives it back.

    Raises:
        DataError: as :func:`take_gpus`, and what ``say`` raises instead of waiting.
    """
    if launchers.chosen() == "ray":  # Ray places the work
        yield
        return
    device = "cuda" if "cuda" in devices else devices[0]
    with _PROCESS_GPU.lock:
        if not _PROCESS_GPU.users:
            if _PROCESS_GPU.gpus and device == "cuda":
                _PROCESS_GPU.leases = gpus.take(_PROCESS_GPU.gpus, 1, holder, say)
            else:
                _PROCESS_GPU.leases = take_gpus(device, 1, holder, params, say)
                _PROCESS_GPU.gpus = tuple(gpus.visible()) if _PROCESS_GPU.leases else ()
        if _PROCESS_GPU.leases:
            _PROCESS_GPU.users += 1
        held = bool(_PROCESS_GPU.leases)
    try:
        yield
    finally:
        with _PROCESS_GPU.lock:
            if held:
                _PROCESS_GPU.users -= 1
                if not _PROCESS_GPU.users:
                    for lease in _PROCESS_GPU.leases:
                        lease.close()
                    _PROCESS_GPU.leases = []


def announce_servers(root: Path) -> None:
    """Say which GPUs reward servers have, where no stage has said so in this process's environment.

    Outside a project a server computes on what is visible to its starter.
    """
    if gpus.SERVERS not in os.environ and (root / PARAMS_FILE).is_file():
        params = load(root / PARAMS_FILE)
        if server_gpus(params):
            gpus.announce(machine_of(params))
