"""Processes that train together on one machine are reached by no other, and exchange nothing that can run code."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch

from paco_core.runtime.launchers import rendezvous
from paco_core.training.processes import Processes
from tests.support.listeners import watched
from tests.support.ranks import together
from tests.support.waiting import until

pytestmark = pytest.mark.slow

DEADLINE_S = 240


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", *rendezvous.INTERFACES):
        monkeypatch.delenv(name, raising=False)


def no_pickles(*_args: object, **_kwargs: object) -> None:
    raise AssertionError("an object was pickled")


def _gathers(world: int) -> None:
    torch.distributed.all_gather_object = no_pickles
    both = Processes()
    own = both.rank
    rows = [[own, 0.1 + own, None], [own, math.nan, "cause – ü"]] if own else []
    assert [row[0] for row in both.gather(rows)] == [1] * 2 * (world - 1)
    (whole, broken) = both.gather(rows)
    assert whole == [1, 1.1, None] and math.isnan(broken[1]) and broken[2] == "cause – ü"
    assert both.gather([]) == []


def test_rows_of_all_ranks_travel_as_json() -> None:
    together(_gathers, 2)
    assert Processes().gather([[1, 2.5, None]]) == [[1, 2.5, None]]


def _meet() -> None:
    """As under mpirun, or a shell loop: nobody but the environment says who is who."""
    both = Processes()
    assert float(both.all_reduce(torch.ones(()))) == 2.0
    both.barrier()


def test_processes_that_something_else_started_listen_where_they_were_told() -> None:
    with watched(os.getpid()) as found:
        together(_meet)
    print(f"\nlistened on {sorted(found)}")
    assert found == {"127.0.0.1"}


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
    with (folder / "log").open("wb") as said:
        launch = subprocess.Popen([*command, "training.py"], cwd=folder, env=environment, stdout=said, stderr=said)
    try:
        yield launch
    finally:
        launch.kill()
        launch.wait()


def both_ranks(folder: Path) -> list[int]:
    """The process ids that both ranks wrote down."""
    files = [folder / f"pid-{rank}" for rank in (0, 1)]
    until(lambda: all(file.exists() and file.read_text() for file in files), 240)
    return [int(file.read_text()) for file in files]


def test_accelerates_launcher_listens_on_this_machine_only(tmp_path: Path, repository: Path) -> None:
    with launched(tmp_path, repository, TRAINING) as launch, watched(launch.pid) as found:
        assert launch.wait(DEADLINE_S) == 0, (tmp_path / "log").read_text()[-3000:]
    print(f"\nlistened on {sorted(found)}")
    assert found == {"127.0.0.1"}


def test_a_port_that_is_taken_opens_no_other(tmp_path: Path, repository: Path) -> None:
    """accelerate alone would go on, with a store that listens on every interface."""
    config, taken_config = (repository / "paco_core/launch/cpu.yaml").read_text(), tmp_path / "taken.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "main_process_port: 0 " in config
        taken_config.write_text(config.replace("main_process_port: 0 ", f"main_process_port: {port} "))
        with launched(tmp_path, repository, TRAINING, taken_config) as launch, watched(launch.pid) as found:
            assert launch.wait(DEADLINE_S) != 0
    log = (tmp_path / "log").read_text()
    assert f"port {port} of 127.0.0.1 is in use; choose another main_process_port" in log
    assert found == set()


WAITING = """
import os, time
from paco_core.training.processes import Processes
both = Processes()
open(f"pid-{both.rank}", "w").write(str(os.getpid()))
time.sleep(600)
"""


def test_ranks_end_with_the_launcher_that_started_them(tmp_path: Path, repository: Path) -> None:
    with launched(tmp_path, repository, WAITING):
        processes = [psutil.Process(pid) for pid in both_ranks(tmp_path)]
    until(lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes))


def test_a_launcher_that_is_stopped_stops_its_ranks_and_says_so(tmp_path: Path, repository: Path) -> None:
    with launched(tmp_path, repository, WAITING) as launch:
        pids = both_ranks(tmp_path)
        launch.terminate()
        assert launch.wait(DEADLINE_S) == 128 + signal.SIGTERM
    log = (tmp_path / "log").read_text()
    assert "stopped by SIGTERM" in log and "Traceback" not in log
    assert not any(psutil.pid_exists(pid) for pid in pids)


FAILING = """
import os, signal, sys, time
from paco_core.training.processes import Processes
both = Processes()
if both.rank == 1:
    {end}
time.sleep(600)  # as in a collective call that does not return
"""


@pytest.mark.parametrize(
    ("end", "says", "status"),
    [
        ("sys.exit('paco: broken on purpose')", ["paco: broken on purpose", "rank 1 ended with status 1;"], 1),
        ("os.kill(os.getpid(), signal.SIGKILL)", ["rank 1 ended with signal 9; its own error message, if any,"], 1),
    ],
)
def test_a_rank_that_fails_is_named_and_the_others_are_ended(
    tmp_path: Path, repository: Path, end: str, says: list[str], status: int
) -> None:
    with launched(tmp_path, repository, FAILING.format(end=end)) as launch:
        assert launch.wait(DEADLINE_S) == status
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log and all(part in log for part in says), log


@pytest.mark.parametrize(
    ("variables", "is_one"),
    [
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "gpu1"}, True),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1"}, False),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, True),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}, False),
        ({"WORLD_SIZE": "1"}, False),
    ],
)
def test_processes_of_one_machine_talk_over_its_loopback(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_one: bool
) -> None:
    for name, value in {"RANK": "0", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert rendezvous.arguments() == {}
    assert [os.environ.get(name) for name in rendezvous.INTERFACES] == ["lo" if is_one else None] * 2
    for name in rendezvous.INTERFACES:
        monkeypatch.delenv(name, raising=False)


def test_what_people_chose_for_the_network_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in {**here, **dict.fromkeys(rendezvous.INTERFACES, "ib0")}.items():
        monkeypatch.setenv(name, value)
    rendezvous.arguments()
    assert [os.environ[name] for name in rendezvous.INTERFACES] == ["ib0", "ib0"]


STORE = """
import sys, psutil
from datetime import timedelta
from paco_core.runtime.launchers.rendezvous import bound_store
store = bound_store(sys.argv[1], 0, 1, True, timedelta(seconds=60), several_machines=True)
store.set("key", "value")
print(*(c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN))
"""


@pytest.mark.parametrize("host", ["this machine's", "localhost"])
def test_a_store_for_several_machines_listens_where_they_all_can_reach_it(host: str) -> None:
    address = _address() if host != "localhost" else host
    done = subprocess.run([sys.executable, "-c", STORE, address], capture_output=True, text=True, timeout=DEADLINE_S)
    listened = done.stdout.split()
    assert listened in ([[address]] if host != "localhost" else [["::"], ["0.0.0.0"]]), done.stderr[-500:]


def test_an_address_of_another_machine_is_not_listened_on() -> None:
    assert rendezvous._listener("192.0.2.1", 0) is None and rendezvous._listener("no.such.host.invalid", 0) is None
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        rendezvous._listener("127.0.0.1", taken.getsockname()[1])


def _address() -> str:
    """An address of this machine that others could reach; its loopback where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine is in no network")
        return str(probe.getsockname()[0])
