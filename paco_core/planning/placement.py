"""Does the graph fit the GPUs of this machine? What each of them would hold at any moment, added up before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paco_core.config.params import Params
from paco_core.io.files import DataError
from paco_core.planning.memory import server_gb
from paco_core.runtime import nvidia_smi
from paco_core.runtime.gpus import Machine
from paco_core.runtime.nvidia_smi import Gpu
from paco_core.runtime.placement import divide_gpus, server_gpus
from paco_core.runtime.stage import Cost, Stage


def described(
    params: Params, root: Path, stages: Mapping[str, Stage], costs: Mapping[str, Cost]
) -> tuple[list[str], list[str]]:
    """(remarks, problems) about the GPUs of the stages and servers; empty if no stage uses a GPU."""
    on_gpu = {label: cost for label, cost in costs.items() if cost.device.startswith("cuda")}
    if not on_gpu and not server_gpus(params):
        return [], []
    listing = nvidia_smi.list_gpus()
    try:
        machine = divide_gpus(params, listing)
    except DataError as error:
        return [], [str(error)]
    memory = _memory(machine.stages, params)
    remarks = [f"GPUs: {_shares(machine, memory)}", *([f"nvidia-smi: {listing.trouble}"] if listing.trouble else [])]
    problems = [listing.too_old] if listing.too_old else []
    if memory is None:
        return [
            *remarks,
            "execution.devices.memory_gb: set it to check the memory of GPUs that are not in this machine",
        ], problems
    shared = not machine.servers
    server = server_gb(params, root, memory) if server_gpus(params) else 0.0
    for label, cost in on_gpu.items():
        stage = stages[label.partition("@")[0]]
        served_gb = server if shared and stage.served else 0.0
        if cost.memory_gb + served_gb > memory:
            also = f" and {served_gb:.0f} GB of the reward's server" if served_gb else ""
            advice = "; or lower execution.serving.gpu_share, or give the server a separate GPU" if served_gb else ""
            here = f"on a GPU of {memory:.0f} GB"
            problems.append(f"{label}: about {cost.memory_gb:.0f} GB{also} {here}; {stage.advice}{advice}")
    if server > memory:
        problems.append(
            f"the reward's server: about {server:.0f} GB on {memory:.0f} GB; raise execution.serving.tensor_parallel"
        )
    return remarks, problems


def _memory(cards: Sequence[Gpu], params: Params) -> float | None:
    """GB of the smallest GPU; None if it is unknown."""
    if params.devices.memory_gb is not None:
        return params.devices.memory_gb
    sizes = [gpu.memory_gb for gpu in cards]
    return min(sizes) if sizes and None not in sizes else None  # type: ignore[type-var]


def _shares(machine: Machine, memory: float | None) -> str:
    size = "" if memory is None else f" of {memory:.0f} GB"
    names = [", ".join(gpu.number for gpu in part) for part in (machine.stages, machine.servers)]
    if not machine.stages:
        return "none is visible here" + (size and f"; added up for one{size}, which stages and reward servers share")
    servers = f"reward servers {names[1]}" if machine.servers else "reward servers share them"
    return f"stages {names[0]}{size}, {servers}"
