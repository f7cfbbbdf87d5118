"""Rendezvous of the processes of a training, with a store that listens at one address only.

torch's TCPStore listens on every interface, so anyone on the network could set its keys. Here the processes of one
machine use the loopback interface. Processes of several machines use the configured address only.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from paco_core.io.files import DataError
from paco_core.io.local_server import is_loopback
from paco_core.runtime.parent_process import die_with_parent

if TYPE_CHECKING:
    from torch.distributed import Store

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
#: What accelerate's launcher and torchrun tell each process.
LAUNCHED_BY = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
TIMEOUT = timedelta(minutes=30)  # default of torch


def launched_rank() -> int | None:
    """The rank of this process, if accelerate's launcher or torchrun started it; otherwise None.

    Raises:
        DataError: when only some of the launcher's variables are set, or they contradict each other. A container or an
            allocation of a cluster may set such variables.
    """
    values = {name: os.environ[name] for name in LAUNCHED_BY if os.environ.get(name)}
    try:
        rank, local_rank, world_size = (int(values.get(name, "0")) for name in LAUNCHED_BY[:3])
    except ValueError:
        rank, local_rank, world_size = -1, -1, -1
    if len(values) == len(LAUNCHED_BY) and 0 <= local_rank <= rank < world_size:
        return rank
    if rank == local_rank == 0 and world_size in (0, 1):
        return None
    names = [name for name in LAUNCHED_BY if name in values]
    raise DataError(
        f"the environment has {', '.join(f'{name}={values[name]}' for name in names)}, as for one of several "
        f"processes, but a launcher sets {', '.join(LAUNCHED_BY)} to numbers that fit each other: "
        f"run `unset {' '.join(names)}`, or start the training with accelerate or torchrun"
    )


def arguments() -> dict[str, Any]:
    """Arguments of accelerate's PartialState besides the environment. This function also sets the network interface.

    Empty if the process group is initialized, or if accelerate's launcher or torchrun started this process: the
    launcher has the store, see :mod:`paco_core.runtime.launchers.accelerated`.
    """
    from torch.distributed import is_initialized

    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1 or is_initialized():
        return {}
    if on_one_machine():
        for name in INTERFACES:
            os.environ.setdefault(name, LOOPBACK)
    ranks = {"rank": int(os.environ["RANK"]), "world_size": world_size}
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        die_with_parent(number=signal.SIGKILL)  # the launcher, which ends its processes unless it is killed itself
        return {}
    if "MASTER_PORT" not in os.environ:
        return {}
    address, port, first = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), ranks["rank"] == 0
    store = bound_store(address, port, world_size, first, TIMEOUT, several_machines=not on_one_machine())
    return {"store": store, **ranks}


@contextmanager
def lost_ranks() -> Iterator[None]:
    """Replace torch's exception for a lost rank by a message of one line.

    Raises:
        DataError: when a connection to another rank broke; that rank prints the reason.
    """
    try:
        yield
    except RuntimeError as error:
        from torch.distributed import DistError

        if "WORLD_SIZE" not in os.environ or not (isinstance(error, DistError) or "gloo" in str(error)):
            raise
        rank = os.environ["RANK"]
        raise DataError(f"rank {rank} lost the connection to another rank, whose own message says why") from error


def on_one_machine() -> bool:
    """Whether all processes of this training are on this machine."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        return os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"]
    return is_loopback(os.environ.get("MASTER_ADDR", ""))


def bound_store(
    host: str, port: int, world_size: int, is_master: bool, timeout: timedelta, *, several_machines: bool
) -> Store:
    """torch's TCPStore, which listens at ``host`` only.

    It listens on every interface, as in torch, in two cases: several machines use it and ``host`` is a loopback address
    here (a line of ``/etc/hosts``), or this machine does not have the address of ``host`` (a forwarded port).

    Args:
        is_master: whether this process runs the store's server.
        several_machines: whether ranks run on more than one machine.
    """
    from torch.distributed import TCPStore

    listener = _listener(host, port) if is_master else None
    if listener is not None and several_machines and is_loopback(listener.getsockname()[0]):
        listener.close()
        listener = None
    if listener is None:
        return TCPStore(host, port, world_size, is_master, timeout, multi_tenant=True)
    bound = listener.getsockname()[1]
    return TCPStore(host, bound, world_size, True, timeout, multi_tenant=True, master_listen_fd=listener.detach())


def _listener(host: str, port: int) -> socket.socket | None:
    """A socket that listens at one address; None if this machine does not have the address.

    Raises:
        OSError: when the port is in use.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        return None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        if error.errno == errno.EADDRINUSE:
            advice = "choose another main_process_port (MASTER_PORT under torchrun), or 0 for a free one"
            raise OSError(error.errno, f"port {port} of {host} is in use; {advice}") from None
        raise
    return listener
