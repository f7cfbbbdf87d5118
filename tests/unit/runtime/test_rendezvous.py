"""Processes that train together on one machine are reached by no other, and exchange nothing that can run code."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import torch

from paco_core.runtime.launchers import rendezvous
from paco_core.training.processes import Processes
from tests.support.listeners import watched
from tests.support.ranks import together
from tests.support.waiting import until

pytestmark = pytest.mark.thorough

DEADLINE_S = 240


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", *rendezvous.INTERFACES):
        monkeypatch.delenv(name, raising=False)


def no_pickles(*_args: object, **_kwargs: object) -> None:
    raise AssertionError("an object was pickled")


def _gathers(world: int) -> None:
    torch.distributed.all_gather_object = no_pickles
    processes = Processes()
    rank = processes.rank
    rows = [[rank, 0.1 + rank, None], [rank, math.nan, "cause – ü"]] if rank else []
    assert [row[0] for row in processes.gather(rows)] == [1] * 2 * (world - 1)
    (first_row, second_row) = processes.gather(rows)
    assert first_row == [1, 1.1, None] and math.isnan(second_row[1]) and second_row[2] == "cause – ü"
    assert processes.gather([]) == []
    assert float(processes.all_reduce(torch.ones(()))) == world
    processes.barrier()


def test_rows_of_all_ranks_travel_as_json_between_processes_that_listen_where_they_were_told() -> None:
    """As under mpirun, or a shell loop: nobody but the environment says who is who."""
    with watched(os.getpid()) as hosts:
        together(_gathers, 2)
    assert hosts == {"127.0.0.1"}
    assert Processes().gather([[1, 2.5, None]]) == [[1, 2.5, None]]


TRAINING = """
import torch
from paco_core.training.processes import Processes
both = Processes()
assert both.world_size == 2 and float(both.all_reduce(torch.ones(()))) == 2.0
both.barrier()
"""


@contextmanager
def launched(
    folder: Path, repository: Path, code: str, config: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """The project's launcher with ``code`` as the training; it writes to ``log``, and is killed after the block."""
    (folder / "training.py").write_text(code)
    configuration = str(config or repository / "paco_core/launch/cpu.yaml")
    command = [sys.executable, "-m", "paco_core.runtime.launchers.accelerated", "--config_file", configuration]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    with (folder / "log").open("wb") as log:
        launch = subprocess.Popen([*command, "training.py"], cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        yield launch
    finally:
        launch.kill()
        launch.wait()


def test_accelerates_launcher_listens_on_this_machine_only(tmp_path: Path, repository: Path) -> None:
    with launched(tmp_path, repository, TRAINING) as launch, watched(launch.pid) as listening:
        assert launch.wait(DEADLINE_S) == 0, (tmp_path / "log").read_text()[-3000:]
    assert listening == {"127.0.0.1"}


def test_a_port_that_is_taken_opens_no_other(tmp_path: Path, repository: Path) -> None:
    """accelerate alone would go on, with a store that listens on every interface."""
    config, taken_config = (repository / "paco_core/launch/cpu.yaml").read_text(), tmp_path / "taken.yaml"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "main_process_port: 0 " in config
        taken_config.write_text(config.replace("main_process_port: 0 ", f"main_process_port: {port} "))
        with launched(tmp_path, repository, TRAINING, taken_config) as launch, watched(launch.pid) as addresses:
            assert launch.wait(DEADLINE_S) != 0
    log = (tmp_path / "log").read_text()
    assert f"port {port} of 127.0.0.1" in log and addresses == set()


ENDING = """
import os, signal, time
from paco_core.training.processes import Processes
both = Processes()
open(f"pid-{both.rank}", "w").write(str(os.getpid()))
if both.rank == 1 and os.path.exists("fail"):
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)  # as in a collective call that does not return
"""


@pytest.mark.parametrize("end", ["kill", "terminate", "fail"])
def test_ranks_end_with_their_launcher_and_with_each_other(tmp_path: Path, repository: Path, end: str) -> None:
    files = [tmp_path / f"pid-{rank}" for rank in (0, 1)]
    if end == "fail":
        (tmp_path / "fail").touch()
    with launched(tmp_path, repository, ENDING) as launch:
        if end != "fail":
            until(lambda: all(file.exists() and file.read_text() for file in files), DEADLINE_S)
        if end == "terminate":
            launch.terminate()
        if end != "kill":
            assert launch.wait(DEADLINE_S) == (1 if end == "fail" else 128 + signal.SIGTERM)
    until(lambda: not any(_runs(file.read_text()) for file in files if file.exists()), DEADLINE_S)
    log = (tmp_path / "log").read_text()
    assert {"kill": "", "terminate": "SIGTERM", "fail": "rank 1 ended with signal 9"}[end] in log
    assert "Traceback" not in log


def _runs(pid: str) -> bool:
    with suppress(psutil.NoSuchProcess, ValueError):
        return psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.parametrize(
    ("variables", "interface"),
    [
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "gpu1"}, "lo"),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1"}, None),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "lo"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}, None),
        ({"WORLD_SIZE": "1"}, None),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **dict.fromkeys(rendezvous.INTERFACES, "ib0")}, "ib0"),
    ],
)
def test_processes_of_one_machine_talk_over_its_loopback_unless_people_chose_otherwise(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], interface: str | None
) -> None:
    for name, value in {"RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True", **variables}.items():
        monkeypatch.setenv(name, value)
    assert rendezvous.arguments() == {}
    assert [os.environ.get(name) for name in rendezvous.INTERFACES] == [interface] * 2
    for name in rendezvous.INTERFACES:
        monkeypatch.delenv(name, raising=False)


STORE = """
import sys, psutil
from datetime import timedelta
from paco_core.runtime.launchers.rendezvous import bound_store
store = bound_store(sys.argv[1], 0, 1, True, timedelta(seconds=60), several_machines=True)
store.set("key", "value")
print(*(c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN))
"""


def test_a_store_for_several_machines_listens_where_they_all_can_reach_it() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine is in no network")
        address = str(probe.getsockname()[0])
    for host, expected in ((address, [[address]]), ("localhost", [["::"], ["0.0.0.0"]])):
        result = subprocess.run([sys.executable, "-c", STORE, host], capture_output=True, text=True, timeout=DEADLINE_S)
        assert result.stdout.split() in expected, result.stderr[-500:]


def test_an_address_of_another_machine_is_not_listened_on() -> None:
    assert rendezvous._listener("192.0.2.1", 0) is None and rendezvous._listener("no.such.host.invalid", 0) is None
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(OSError, match="in use"):
        rendezvous._listener("127.0.0.1", server.getsockname()[1])
