"""GPUs are shared out by locks: nobody has one twice, and whoever dies gives his back."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from dvc_project.file_locks import is_held
from paco_core.io.files import DataError
from paco_core.runtime import gpus, launch, nvidia_smi
from paco_core.runtime.gpus import Machine
from paco_core.runtime.launchers import accelerated
from paco_core.runtime.nvidia_smi import Gpu, Listing
from paco_core.serving.engines import Launch
from paco_core.serving.servers.registry import Registry, ServerSettings
from paco_core.stages import declaration
from tests.support.waiting import until

CARDS = [Gpu(str(n), f"GPU-{n}", 80.0) for n in range(4)]
HOLD = """
import sys, time
from paco_core.runtime import gpus
from paco_core.runtime import nvidia_smi
held = gpus.acquire([nvidia_smi.Gpu(n, f"GPU-{n}") for n in sys.argv[2].split(",")], int(sys.argv[1]), "stage b", print)
print("has", __import__("os").environ["CUDA_VISIBLE_DEVICES"], flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    for name in (gpus.VISIBLE, gpus.STAGES, gpus.SERVERS):
        monkeypatch.setenv(name, "")  # so that what the code under test sets is taken back
        monkeypatch.delenv(name)


def test_gpus_are_those_that_cuda_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.visible() == []
    first, second, last = cards = [Gpu("0", "GPU-a1", 85.5), Gpu("1", "GPU-b2", 85.5), Gpu("2", "GPU-c")]
    monkeypatch.setattr(nvidia_smi, "list_gpus", lambda: Listing(cards))
    assert gpus.visible() == [first, second, last]
    monkeypatch.setenv(gpus.VISIBLE, "1")
    assert gpus.visible() == [second]
    monkeypatch.setenv(gpus.VISIBLE, "GPU-b, 7")
    assert gpus.visible() == [second, Gpu("7", "7")]
    monkeypatch.setenv(gpus.VISIBLE, "GPU-")  # the beginning of several UUIDs: CUDA sees none
    assert gpus.visible() == [Gpu("GPU-", "GPU-")]
    for nothing in ("", "-1", "-1,0"):
        monkeypatch.setenv(gpus.VISIBLE, nothing)
        assert gpus.visible() == []


@pytest.mark.parametrize(
    ("chosen", "servers", "needed", "machine"),
    [
        (None, None, 1, Machine(tuple(CARDS[:3]), (CARDS[3],))),
        (None, None, 0, Machine(tuple(CARDS))),
        (None, 0, 1, Machine(tuple(CARDS))),
        (None, 2, 1, Machine(tuple(CARDS[:2]), tuple(CARDS[2:]))),
        ([2, 0], None, 1, Machine((CARDS[2],), (CARDS[0],))),
        ([1], None, 1, Machine((CARDS[1],))),  # one alone: the server shares it
    ],
)
def test_the_last_gpus_are_the_servers(
    chosen: list[int] | None, servers: int | None, needed: int, machine: Machine
) -> None:
    assert gpus.divide(CARDS, chosen, servers, needed) == machine
    assert gpus.divide([], None, None, needed) == Machine()
    for numbers, of_servers, key in (([0, 7], None, "devices.gpus"), (None, 4, "devices.servers")):
        with pytest.raises(DataError, match=key):
            gpus.divide(CARDS, numbers, of_servers, 1)


def test_nobody_has_a_gpu_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    first = gpus.acquire(CARDS, 3, "stage a", print)
    assert os.environ[gpus.VISIBLE] == "GPU-0,GPU-1,GPU-2"
    second = gpus.acquire(CARDS, 1, "stage b", print)
    assert os.environ[gpus.VISIBLE] == "GPU-3"
    for stream in first[1:]:
        stream.close()
    third = gpus.acquire(CARDS, 2, "stage c", print)
    assert os.environ[gpus.VISIBLE] == "GPU-1,GPU-2"
    for stream in [first[0], *second, *third]:
        stream.close()
    with pytest.raises(DataError, match="stage d"):
        gpus.acquire(CARDS, 5, "stage d", print)


def waiter(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-u", "-c", HOLD, *words], stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_who_waits_is_told_for_whom_and_gets_what_the_dead_had() -> None:
    holder = waiter("2", "0,1")
    try:
        assert line_of(holder) == "has GPU-0,GPU-1"
        messages: list[str] = []

        def record_message(line: str) -> None:
            messages.append(line)
            holder.kill()

        leases = gpus.acquire(CARDS[:3], 2, "stage c", record_message)
        assert os.environ[gpus.VISIBLE] == "GPU-0,GPU-1" and holder.wait(10) == -signal.SIGKILL
        assert len(messages) == 1 and messages[0].count(f"stage b, process {holder.pid}") == 2
        for stream in leases:
            stream.close()
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_waiting_processes_are_served_in_the_order_of_their_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = CARDS[:2]
    (first,), (second,) = (gpus.acquire(cards, 1, f"stage {name}", print) for name in "ab")

    def refuse(line: str) -> None:
        raise BlockingIOError(line)

    def release_one(_seconds: float) -> None:
        """While the stage that needs both GPUs waits, one becomes free, and a later stage tries to take it."""
        if not first.closed:
            first.close()
            with pytest.raises(BlockingIOError):
                gpus.acquire(cards, 1, "a later stage", refuse)
            gpus.acquire(CARDS[2:], 1, "a stage of other GPUs", refuse)[0].close()
        second.close()

    monkeypatch.setattr("time.sleep", release_one)
    assert len(gpus.acquire(cards, 2, "stage c", print)) == 2


def test_a_waiting_process_that_was_killed_blocks_no_other() -> None:
    gpus.acquire(CARDS, 1, "stage a", print)[0].close()
    ticket = gpus._folder() / gpus.QUEUE / "0-1-1"
    ticket.write_text("GPU-0")
    gpus.acquire(CARDS[:1], 1, "stage b", print)
    assert not ticket.exists()


def test_two_that_want_both_do_not_have_one_each() -> None:
    for _ in range(2):
        waiters = [waiter("2", "0,1"), waiter("2", "1,0")]
        try:
            while waiters:
                for process in waiters:
                    if select.select([process.stdout], [], [], 0.1)[0] and line_of(process).startswith("has "):
                        process.kill()
                        process.communicate()
                        waiters.remove(process)
                        break
        finally:
            for process in waiters:
                process.kill()
                process.communicate()


def test_servers_get_a_gpu_each_and_share_the_last_where_there_are_too_few() -> None:
    with gpus.for_server(1, "server") as unannounced:
        assert unannounced == ({}, ())  # nobody said so: a server computes where its starter does
    gpus.announce(Machine(tuple(CARDS[:2]), tuple(CARDS[2:])))
    with (
        gpus.for_server(1, "server a") as (first, first_descriptors),
        gpus.for_server(1, "server b") as (second, second_descriptors),
    ):
        assert (first, second) == ({gpus.VISIBLE: "GPU-2"}, {gpus.VISIBLE: "GPU-3"}) and len(first_descriptors) == len(
            second_descriptors
        ) == 1
        with gpus.for_server(1, "server c") as (third, none):
            assert (third, none) == ({gpus.VISIBLE: "GPU-3"}, ())
    with gpus.for_server(2, "server d") as (wide, _):
        assert wide == {gpus.VISIBLE: "GPU-2,GPU-3"}
    with gpus.for_server(0, "server e") as nothing:
        assert nothing == ({}, ())


def test_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.acquire(CARDS, 1, "stage a", print)[0].close()
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    (Path(os.environ["TMPDIR"]) / f"paco-gpus-{os.getuid()}").mkdir()
    with pytest.raises(DataError, match="belongs to another user"):
        gpus.acquire(CARDS, 1, "stage a", print)


# --- stages and servers ------------------------------------------------------------------------------------


def on_gpus(project: Path, **sections: Any) -> None:
    tree = yaml.safe_load((project / "params.yaml").read_text())
    for name in ("grids", "reward", "policies", "serving"):
        (tree[name]["defaults"] if name == "policies" else tree[name])["device"] = "cuda"
    for name, changes in sections.items():
        tree.setdefault(name, {}).update(changes)
    (project / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    os.environ[gpus.VISIBLE] = "0,1,2"


def place(stage: str, item: str | None, project: Path, launcher: Any = "local") -> list[IO[bytes]]:
    return launch._place_stage(stage, declaration(stage), item, project, launcher)


def test_a_training_takes_a_gpu_for_each_process(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as params.yaml or accelerate's configuration says, held by the launcher that the stage becomes."""
    on_gpus(project, execution={"reward": {"processes": 2}})
    (project / "launch").mkdir()
    (project / "launch" / "ddp.yaml").write_text("num_machines: 1\nnum_processes: 2\n")
    became: list[tuple[str, str, bool]] = []

    def replace_process(stage: str, *_args: object) -> None:
        locks = [gpus._file(gpus._folder(), gpu) for gpu in gpus.visible()]
        became.append((stage, os.environ[gpus.VISIBLE], all(is_held(file) for file in locks)))

    monkeypatch.setattr(accelerated, "replace_process", replace_process)
    for stage, item, launcher in (("reward_lora", None, "local"), ("policies", "qwen_edit", "accelerate")):
        for lease in place(stage, item, project, launcher):
            assert os.get_inheritable(lease.fileno())
            lease.close()
        monkeypatch.setenv(gpus.VISIBLE, "0,1,2")
    assert became == [("reward_lora", "0,1", True), ("policies", "0,1", True)]
    for text, part in (
        ("num_processes: 7\n", "policies@qwen_edit of .* 7 GPUs"),
        ("num_machines: 1\n", "num_processes"),
    ):
        (project / "launch" / "ddp.yaml").write_text(text)
        with pytest.raises(DataError, match=part):
            place("policies", "qwen_edit", project, "accelerate")


def test_numbered_devices_processors_and_ray_take_no_lease(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpus(project, grids={"device": "cuda:1"})
    assert place("grids", "0", project) == [] and os.environ[gpus.VISIBLE] == "0,1,2"
    assert place("policies", "flux_t2is", project, "ray") == []
    monkeypatch.delenv(gpus.SERVERS)
    on_gpus(project, grids={"device": "cpu"}, serving={"device": "cpu"})
    assert place("grids", "0", project) == [] and gpus.SERVERS not in os.environ


def test_a_server_computes_on_its_own_gpu_and_holds_it_while_it_lives(project: Path) -> None:
    on_gpus(project)
    leases = place("policies", "flux_t2is", project)
    assert os.environ[gpus.VISIBLE] == "0"
    file = project / "visible"
    code = f"import os, time; open({str(file)!r}, 'w').write(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(60)"
    server = Launch([sys.executable, "-c", code], {**os.environ}, inherits=True)
    settings = ServerSettings("fake", "model", "127.0.0.1", 0, "float32", 0.0, lambda _h, _p, _d: server, gpus=1)
    registry = Registry(project)
    _, lease = registry.acquire("paco-reward@a", settings)
    until(lambda: file.is_file() and file.read_text())
    lock = gpus._file(gpus._folder(), Gpu("2", "2"))
    assert file.read_text() == "2" and is_held(lock) and b"server paco-reward@a" in lock.read_bytes()
    registry.release("paco-reward@a", lease)
    assert not is_held(lock)
    for lease in leases:
        lease.close()
