"""Training with one process per device: ``accelerate launch`` replaces this process.

As a module (``python -m paco_core.runtime.launchers.accelerated --config_file ...``) it is ``accelerate launch`` with a
store that listens at one address, not on every interface: see :mod:`paco_core.runtime.launchers.rendezvous`.

``PACO_ACCELERATE_CONFIG`` is the configuration of accelerate. Its default is ``launch/ddp.yaml``, or
``launch/cpu.yaml`` if the training runs on the CPU. paco ships these files. A project may have its own.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from dvc_project.yaml import parse_yaml
from paco_core.io.files import DataError
from paco_core.io.shipped import LIBRARY, shipped_file
from paco_core.runtime.launchers.rendezvous import bound_store

if TYPE_CHECKING:
    from torch.distributed import Store

CONFIG = "PACO_ACCELERATE_CONFIG"
STARTED = "PACO_STARTED_BY_ACCELERATE"  # in the environment of the processes that accelerate starts


def launch_command(stage: str, item: str | None, root: Path, device: str, processes: int | None = None) -> list[str]:
    """The command that starts the ranks of a stage.

    Args:
        device: of the training, which selects the default configuration.
        processes: number of ranks; None = as the configuration sets.

    Raises:
        DataError: when the configuration file does not exist.
    """
    config = _configuration(root, device)
    launch = [sys.executable, "-m", "paco_core.runtime.launchers.accelerated", "--config_file", str(config)]
    count = [] if processes is None else ["--num_processes", str(processes)]
    return [*launch, *count, "-m", "paco_core", "run", stage, *(["--item", item] if item else [])]


def _configuration(root: Path, device: str) -> Path:
    config = shipped_file(root, os.environ.get(CONFIG, f"launch/{'cpu' if device == 'cpu' else 'ddp'}.yaml"))
    if not config.is_file():
        names = ", ".join(f"launch/{file.name}" for file in sorted((LIBRARY / "launch").glob("*.yaml")))
        raise DataError(f"{config}: no such file; {CONFIG} names accelerate's configuration: your own, or of {names}")
    return config


def configured_processes(root: Path, device: str) -> tuple[int, int]:
    """The total number of processes in the configuration, and the number of machines.

    Raises:
        DataError: when the configuration file does not exist, or lacks the numbers.
    """
    config = _configuration(root, device)
    settings = parse_yaml(config.read_text())
    try:
        processes, machines = int(settings["num_processes"]), int(settings.get("num_machines", 1))
        if min(processes, machines) < 1:
            raise ValueError
        return processes, machines
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{config}: needs num_processes (and num_machines), whole numbers") from None


def replace_process(stage: str, item: str | None, root: Path, device: str, processes: int | None = None) -> NoReturn:
    """Replace this process by the launcher of the ranks, so signals, pipes and the exit status are those of the stage.

    Raises:
        DataError: when accelerate started this process without a rank; it would do so endlessly.
    """
    start = launch_command(stage, item, root, device, processes)
    if STARTED in os.environ:
        raise DataError(
            f"{_configuration(root, device)}: accelerate starts a single process without a rank by it; "
            "set distributed_type: MULTI_GPU, also for processors (see launch/cpu.yaml)"
        )
    os.execve(start[0], start, {**os.environ, STARTED: "1"})  # noqa: S606 (no shell is wanted)


def _store(host: str, port: int, machines: int, is_master: bool, timeout: timedelta, *, multi_tenant: bool) -> Store:
    """The store of torch's static rendezvous."""
    assert multi_tenant
    return bound_store(host, port, machines, is_master, timeout, several_machines=machines > 1)


def main() -> None:
    """Run accelerate's launcher with its arguments.

    If ``main_process_port`` is in use, accelerate selects a store that listens on every interface for the processes of
    one machine. Here that is an error, as accelerate reports it for several machines.
    """
    from accelerate.commands.launch import main as launch
    from accelerate.utils import launch as accelerate_launch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

    accelerate_launch.is_port_in_use = lambda _port=None: False
    static_tcp_rendezvous.TCPStore = _store
    try:
        launch()
    except ChildFailedError as error:  # its own text is a table around a traceback that torch does not have
        rank, failure = error.get_first_failure()
        status = f"signal {-failure.exitcode}" if failure.exitcode < 0 else f"status {failure.exitcode}"
        print(f"rank {rank} ended with {status}; its own error message, if any, is above", file=sys.stderr)
        sys.exit(failure.exitcode if failure.exitcode > 0 else 1)
    except SignalException as error:  # it has stopped the ranks
        print(f"stopped by {error.sigval.name}", file=sys.stderr)
        sys.exit(128 + error.sigval)


if __name__ == "__main__":
    main()
