"""Places stages and reward servers on the GPUs of this machine, as ``devices`` in params.yaml divides them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.io import gpus, nvidia_smi
from paco_core.io.nvidia_smi import Listing


def server_gpus(params: Params) -> int:
    """GPUs that one reward server computes on."""
    return params.serving.tensor_parallel if params.serving.device.startswith("cuda") else 0


def machine_of(params: Params, listing: Listing | None = None) -> gpus.Machine:
    """The GPUs that are visible here (``listing``; None = asked now), divided between stages and reward servers.

    Raises:
        DataError: as :func:`paco_core.io.gpus.divide`.
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


def announce_servers(root: Path) -> None:
    """Say which GPUs reward servers have, where no stage has said so in this process's environment.

    Outside a project a server computes on what is visible to its starter.
    """
    if gpus.SERVERS not in os.environ and (root / PARAMS_FILE).is_file():
        params = load(root / PARAMS_FILE)
        if server_gpus(params):
            gpus.announce(machine_of(params))
