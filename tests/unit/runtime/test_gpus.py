"""GPUs are shared out by locks: nobody has one twice, and whoever dies gives his back."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paco_core.io.files import DataError
from paco_core.runtime import gpus, nvidia_smi
from paco_core.runtime.gpus import Machine
from paco_core.runtime.nvidia_smi import Gpu, Listing

CARDS = [Gpu(str(n), f"GPU-{n}", 80.0) for n in range(4)]
HOLD = """
import sys, time
from paco_core.runtime import gpus
from paco_core.runtime import nvidia_smi
held = gpus.take([nvidia_smi.Gpu(n, f"GPU-{n}") for n in sys.argv[2].split(",")], int(sys.argv[1]), "stage b", print)
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
    first, second, last = cards = [Gpu("0", "GPU-a", 85.5), Gpu("1", "GPU-b", 85.5), Gpu("2", "GPU-c")]
    monkeypatch.setattr(nvidia_smi, "listed", lambda: Listing(cards))
    assert gpus.visible() == [first, second, last]
    monkeypatch.setenv(gpus.VISIBLE, "1")
    assert gpus.visible() == [second]
    monkeypatch.setenv(gpus.VISIBLE, "GPU-b, 7")
    assert gpus.visible() == [second, Gpu("7", "7")]
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


def test_a_division_that_cannot_be_is_named() -> None:
    with pytest.raises(DataError, match="devices.gpus: no GPU 7 is visible; there are: 0, 1, 2, 3"):
        gpus.divide(CARDS, [0, 7], None, 1)
    with pytest.raises(DataError, match="devices.servers: 4 of 4 GPUs for reward servers leaves none"):
        gpus.divide(CARDS, None, 4, 1)
    assert gpus.divide([], None, None, 1) == Machine()


def test_nobody_has_a_gpu_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    first = gpus.take(CARDS, 3, "stage a", print)
    assert os.environ[gpus.VISIBLE] == "GPU-0,GPU-1,GPU-2"
    second = gpus.take(CARDS, 1, "stage b", print)
    assert os.environ[gpus.VISIBLE] == "GPU-3"
    for stream in first[1:]:
        stream.close()
    third = gpus.take(CARDS, 2, "stage c", print)
    assert os.environ[gpus.VISIBLE] == "GPU-1,GPU-2"
    for stream in [first[0], *second, *third]:
        stream.close()
    with pytest.raises(DataError, match="stage d needs 5 GPUs, and stages have 4 here"):
        gpus.take(CARDS, 5, "stage d", print)


def waiter(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-u", "-c", HOLD, *words], stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_who_waits_is_told_for_whom_and_gets_what_the_dead_had(end: signal.Signals) -> None:
    holder = waiter("2", "0,1")
    try:
        assert line_of(holder) == "has GPU-0,GPU-1"
        told: list[str] = []

        def heard(line: str) -> None:
            told.append(line)
            holder.send_signal(end)

        held = gpus.take(CARDS[:3], 2, "stage c", heard)
        assert os.environ[gpus.VISIBLE] == "GPU-0,GPU-1" and holder.wait(10) == -end
        assert told == [
            f"waiting for 2 GPUs: GPU 0 has stage b, process {holder.pid}; GPU 1 has stage b, process {holder.pid}"
        ]
        for stream in held:
            stream.close()
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_waiting_processes_are_served_in_the_order_of_their_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = CARDS[:2]
    (first,), (second,) = (gpus.take(cards, 1, f"stage {name}", print) for name in "ab")

    def refuse(line: str) -> None:
        raise BlockingIOError(line)

    def release_one(_seconds: float) -> None:
        """While the stage that needs both GPUs waits, one becomes free, and a later stage tries to take it."""
        if not first.closed:
            first.close()
            with pytest.raises(BlockingIOError):
                gpus.take(cards, 1, "a later stage", refuse)
            gpus.take(CARDS[2:], 1, "a stage of other GPUs", refuse)[0].close()
        second.close()

    monkeypatch.setattr("time.sleep", release_one)
    assert len(gpus.take(cards, 2, "stage c", print)) == 2


def test_a_waiting_process_that_was_killed_blocks_no_other() -> None:
    gpus.take(CARDS, 1, "stage a", print)[0].close()
    ticket = gpus._folder() / gpus.QUEUE / "0-1-1"
    ticket.write_text("GPU-0")
    gpus.take(CARDS[:1], 1, "stage b", print)
    assert not ticket.exists()


def test_two_that_want_both_do_not_have_one_each() -> None:
    for _ in range(3):
        both = [waiter("2", "0,1"), waiter("2", "1,0")]
        try:
            while both:
                for process in both:
                    if select.select([process.stdout], [], [], 0.1)[0] and line_of(process).startswith("has "):
                        process.kill()
                        process.communicate()
                        both.remove(process)
                        break
        finally:
            for process in both:
                process.kill()
                process.communicate()


def test_servers_get_a_gpu_each_and_share_the_last_where_there_are_too_few() -> None:
    assert _for_server() == ({}, ())  # nobody said so: a server computes where its starter does
    gpus.announce(Machine(tuple(CARDS[:2]), tuple(CARDS[2:])))
    with gpus.for_server(1, "server a") as (first, held), gpus.for_server(1, "server b") as (second, more):
        assert (first, second) == ({gpus.VISIBLE: "GPU-2"}, {gpus.VISIBLE: "GPU-3"}) and len(held) == len(more) == 1
        with gpus.for_server(1, "server c") as (third, none):
            assert (third, none) == ({gpus.VISIBLE: "GPU-3"}, ())
    with gpus.for_server(2, "server d") as (wide, _):
        assert wide == {gpus.VISIBLE: "GPU-2,GPU-3"}
    with gpus.for_server(0, "server e") as nothing:
        assert nothing == ({}, ())


def _for_server() -> tuple[dict[str, str], tuple[int, ...]]:
    with gpus.for_server(1, "server") as found:
        return found


def test_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.take(CARDS, 1, "stage a", print)[0].close()
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    (Path(os.environ["TMPDIR"]) / f"paco-gpus-{os.getuid()}").mkdir()
    with pytest.raises(DataError, match="belongs to another user"):
        gpus.take(CARDS, 1, "stage a", print)


def test_the_beginning_of_one_uuid_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [Gpu("0", "GPU-a1"), Gpu("1", "GPU-a2")]
    monkeypatch.setenv(gpus.VISIBLE, "GPU-a2")
    assert gpus.visible(Listing(cards)) == [cards[1]]
    monkeypatch.setenv(gpus.VISIBLE, "GPU-a")  # of two: CUDA sees none
    assert gpus.visible(Listing(cards)) == [Gpu("GPU-a", "GPU-a")]


@pytest.mark.parametrize("cards", [CARDS[:2], CARDS[1::-1]])
def test_a_lease_is_by_uuid_whatever_the_order(cards: list[Gpu]) -> None:
    """nvidia-smi counts by slot, CUDA the fastest first: a number would show another card."""
    (stream,) = gpus.take(cards, 1, "stage a", print)
    assert os.environ[gpus.VISIBLE] == cards[0].name
    stream.close()
