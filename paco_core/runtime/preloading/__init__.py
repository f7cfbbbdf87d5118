"""Stages that start in a process which has imported the libraries: one that imports them, and forks.

Importing torch, transformers, diffusers and peft takes 2 to 7 s of processor time, and a run of the graph has some
eighteen processes that do. ``python -m pipelines.repro`` starts a server that imports them once
(:mod:`~paco_core.runtime.preloading.server`) and names its socket in the environment. ``python -m paco_core run STAGE``
finds it there and becomes a client (:mod:`~paco_core.runtime.preloading.client`): the server forks, and the fork takes
on the client's arguments, environment, folder and pipes and runs the stage
(:mod:`~paco_core.runtime.preloading.worker`). The client passes signals on and ends as the stage does.

Only libraries are shared. Our own modules are read anew by each stage, as they are without a server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

#: The server's socket; stages that wait for it even while it still imports, with commas. Set for DVC, never by hand.
SOCKET, STAGES = "PACO_PRELOADED", "PACO_PRELOADED_STAGES"
#: The socket, kept by a stage for the ranks that it may launch.
FOR_RANKS = "PACO_PRELOADED_FOR_RANKS"
#: What differs between a server and a stage and is read by no library at its import: DVC's variables, ours, the
#: shell's, and those that give a rank its place.
_PREFIXES = ("DVC_", "PACO_", "ACCELERATE_", "TORCHELASTIC_", "MASTER_", "GROUP_", "ROLE_")
_NAMES = {
    *("PATH", "PWD", "OLDPWD", "SHLVL", "_", "PS1", "PS2", "PS3", "PS4", "PROMPT"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
}


def surroundings() -> dict[str, str]:
    """What libraries may have read when they were imported, of this process, by what it is called.

    The server starts no stage whose own are different: a variable, the project's folder, the parameters (how many
    threads), the interpreter or the packages that are installed have changed.
    """
    variables = {n: v for n, v in os.environ.items() if n not in _NAMES and not n.startswith(_PREFIXES)}
    params = Path("params.yaml")
    packages = [Path(folder) for folder in sys.path if folder.endswith(("site-packages", "dist-packages"))]
    return {
        **variables,
        "the folder": str(Path.cwd()),
        params.name: params.read_bytes().decode(errors="backslashreplace") if params.is_file() else "",
        "the interpreter": repr((sys.version, sys.prefix, sys.flags)),
        "the installed packages": repr([(str(p), p.stat().st_mtime_ns) for p in packages if p.is_dir()]),
    }


def changes(now: dict[str, str], before: dict[str, str]) -> list[str]:
    """What differs between two, without its values: they may be secrets."""
    return sorted(name for name in {*now, *before} if now.get(name) != before.get(name))


def serve_ranks(stage: str) -> bool:
    """Name the server in the environment of the ranks of ``stage``, where this process is a fork of it.

    Returns whether it is one, which has imported the libraries.
    """
    place = os.environ.pop(FOR_RANKS, "")
    if place:
        os.environ.update({SOCKET: place, STAGES: stage})
    return bool(place)
