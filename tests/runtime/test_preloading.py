"""A stage that a server's fork runs behaves as one that was started cold: the same code, ends, files and signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from waiting import until

from paco_core.runtime.preloading import FOR_RANKS, SOCKET, STAGES

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Linux alone has process descriptors")

#: The server itself, for a library that is imported in no time, or when the test says so.
SERVER = """
from paco_core.runtime.preloading import server
server.LIBRARIES = {"gated": (), "not_installed": ()}
server.main()
"""
GATED = """
import os, pathlib, time
pathlib.Path("importing").touch()
while pathlib.Path("gate").exists():
    time.sleep(0.02)
IMPORTED_BY = os.getpid()
"""
#: In the place of paco's own commands: a stage of which each test says what it does.
COMMANDS = """
import pathlib
def main():
    exec(compile(pathlib.Path("stage.py").read_text(), "stage.py", "exec"), {})
"""
#: Waits in a stage that has started a process; writes down both.
FAMILY = """
import pathlib, os, signal, subprocess, sys, time
{before}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("family.part").write_text(f"{{os.getpid()}} {{child.pid}}")
pathlib.Path("family.part").rename("family")
time.sleep(600)
"""
#: A stage that launches one rank as accelerate does, and a rank that runs ``rank``.
LAUNCHES = """
import os, subprocess, sys
from paco_core.runtime.preloading import serve_ranks
from paco_core.runtime.process import prepare
if "RANK" not in os.environ:
    prepare(1)
    serve_ranks("x")
    own = {{"RANK": "1", "MASTER_PORT": "1", "ACCELERATE_USE_CPU": "True", "TORCHELASTIC_USE_AGENT_STORE": "True"}}
    rank = subprocess.Popen([sys.executable, "-m", "paco_core", "run", "x"], env={{**os.environ, **own}})
    {launcher}
{rank}
"""
TIDIES = """
def tidy(number, frame):
    print("tidied up after", number, flush=True)
    raise SystemExit(5)
signal.signal(signal.SIGINT, tidy), signal.signal(signal.SIGTERM, tidy)
"""


@dataclass
class World:
    """A folder with a copy of paco_core, and the server of its stages."""

    root: Path
    server: subprocess.Popen[bytes]
    place: Path

    def environment(self, stage: str = "x", **more: str) -> dict[str, str]:
        ours = {"PYTHONPATH": str(self.root / "libraries"), SOCKET: str(self.place), STAGES: stage}
        inherited = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        return {**inherited, **ours, **more}

    def start(self, body: str, cold: bool = False, **more: str) -> subprocess.Popen[str]:
        (self.root / "stage.py").write_text(body)
        environment = self.environment(**more)
        if cold:
            del environment[SOCKET], environment[STAGES]
        return subprocess.Popen(
            [sys.executable, "-m", "paco_core", "run", "x", "--item", "0"], cwd=self.root, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def run(self, body: str, cold: bool = False, **more: str) -> tuple[int, str, str]:
        process = self.start(body, cold, **more)
        said, complained = process.communicate("asked\n", timeout=60)
        return process.returncode, said, complained

    def is_preloaded(self, **more: str) -> bool:
        status, said, complained = self.run("import gated, os; print(gated.IMPORTED_BY == os.getpid())", **more)
        assert status == 0, complained
        return said == "False\n"

    def family(self) -> list[psutil.Process]:
        until((self.root / "family").exists)
        return [psutil.Process(int(number)) for number in (self.root / "family").read_text().split()]


@pytest.fixture(scope="module")
def copied(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("preloading")
    shutil.copytree(
        repository / "paco_core", root / "paco_core", ignore=shutil.ignore_patterns("__pycache__", "new_project")
    )
    (root / "paco_core/cli/commands.py").write_text(COMMANDS)
    (root / "libraries").mkdir()
    (root / "libraries/gated.py").write_text(GATED)
    return root


@pytest.fixture
def world(copied: Path, tmp_path: Path) -> Iterator[World]:
    for left in ("family", "importing", "gate", "params.yaml"):
        (copied / left).unlink(missing_ok=True)
    place = tmp_path / "private" / "socket"
    place.parent.mkdir()
    with serving(copied, place) as world:
        yield world


class serving:
    """A server, ended with the block."""

    def __init__(self, root: Path, place: Path) -> None:
        self.root, self.place = root, place

    def __enter__(self) -> World:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.place))
            listener.listen()
            number = listener.fileno()
            world = World(self.root, None, self.place)  # type: ignore[arg-type]
            command = [sys.executable, "-c", SERVER, str(number), str(os.getpid()), "1"]
            world.server = subprocess.Popen(command, cwd=self.root, env=world.environment(), pass_fds=(number,))
        self.server = world.server
        return world

    def __exit__(self, *_error: object) -> None:
        self.server.kill()
        self.server.wait()


@contextmanager
def importing(world: World) -> Iterator[World]:
    """Another server, which goes on importing until the gate is removed."""
    assert world.is_preloaded()  # its server has made the mark of the imports
    (world.root / "importing").unlink()
    (world.root / "gate").touch()
    with serving(world.root, world.place.with_name("other")) as other:
        yield other


def gone(processes: list[psutil.Process]) -> bool:
    def ended(process: psutil.Process) -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return all(ended(process) for process in processes)


@pytest.mark.parametrize(
    "body",
    [
        "print('made')",
        "raise SystemExit(7)",
        "raise SystemExit('no ink')",
        "import sys; sys.stdout.write('no newline'); sys.exit()",
        "1 / 0",
        "raise KeyboardInterrupt",
        "import os; print('lost'); os._exit(3)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os; os.execv('/bin/sh', ['sh', '-c', 'read it; echo $it; exit 9'])",
        "import atexit, threading, time\n"
        "atexit.register(print, 'last')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('later'))).start()",
    ],
)  # fmt: skip
def test_it_ends_as_a_cold_one_does(world: World, body: str) -> None:
    assert world.is_preloaded()
    cold, preloaded = world.run(body, cold=True), world.run(body)
    assert preloaded[:2] == cold[:2]
    assert preloaded[2].splitlines()[-1:] == cold[2].splitlines()[-1:]


def test_it_finds_what_a_cold_one_finds(world: World) -> None:
    body = """
import json, os, signal, sys
import numpy
os.umask(mask := os.umask(0))
found = {
    "environment": dict(os.environ), "folder": os.getcwd(), "umask": mask, "input": sys.stdin.readline(),
    "words": sys.argv, "all words": sys.orig_argv, "path": sys.path, "main": sys.modules["__main__"].__spec__.name,
    "handlers": {int(n): repr(signal.getsignal(n)) for n in signal.valid_signals()},
    "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
    "files": sorted(os.listdir("/proc/self/fd")), "leads": [os.getpid() == os.getpgrp(), os.getpid() == os.getsid(0)],
    "streams": [[s.line_buffering, s.write_through, s.encoding, s.errors] for s in (sys.stdin, sys.stdout, sys.stderr)],
}
found["environment"].pop("_", None), found["environment"].pop("PACO_PRELOADED_FOR_RANKS", None)
print(json.dumps(found))
"""
    mask = os.umask(0o027)
    try:
        cold, preloaded = (json.loads(world.run(body, cold)[1]) for cold in (True, False))
    finally:
        os.umask(mask)
    assert preloaded == cold
    assert preloaded["umask"] == 0o027 and preloaded["input"] == "asked\n" and SOCKET not in preloaded["environment"]


def test_our_sources_are_read_by_each_stage_anew(world: World) -> None:
    """Also those that the server itself uses."""
    sources = [world.root / "paco_core/runtime" / name for name in ("process.py", "preloading/worker.py")]
    known = [source.read_text() for source in sources]
    body = (
        "from paco_core.runtime import process\nfrom paco_core.runtime.preloading import worker\n"
        "print(getattr(process, 'EDITED', 0), getattr(worker, 'EDITED', 0))"
    )
    try:
        assert world.is_preloaded() and world.run(body)[1] == "0 0\n"
        for number in (1, 2):
            for source, text in zip(sources, known, strict=True):
                source.write_text(f"{text}\nEDITED = {number}\n")
                os.utime(source, (number, number))  # byte code of the same second must not be taken for it
            assert world.run(body)[1] == f"{number} {number}\n"
        assert world.is_preloaded()
    finally:
        for source, text in zip(sources, known, strict=True):
            source.write_text(text)


def test_forks_share_no_random_numbers(world: World) -> None:
    body = "import numpy, random; print(numpy.random.random(), random.random())"
    with_numpy = "import os, sys; import numpy; print(numpy.random.random())"
    assert len({world.run(body)[1] for _ in range(3)}) == 3 and world.run(with_numpy)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_of_the_clients_group_reaches_the_stage_and_what_it_started(
    world: World, number: signal.Signals
) -> None:
    client = world.start(FAMILY.format(before=TIDIES))
    family = world.family()
    os.killpg(client.pid, number)
    said, _ = client.communicate(timeout=60)
    assert (client.returncode, said) == (5, f"tidied up after {int(number)}\n")
    until(lambda: gone(family))


def test_a_stop_that_the_client_ignores_is_ignored_by_the_stage(world: World) -> None:
    body = "import signal; print([signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, signal.SIGTERM)])"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert world.run(body)[1] == "[True, False]\n"
    finally:
        signal.signal(signal.SIGINT, before)


def test_kill_9_of_the_client_ends_the_stage_and_what_it_started(world: World) -> None:
    client = world.start(FAMILY.format(before=""))
    family = world.family()
    client.kill()
    assert client.wait() == -signal.SIGKILL
    until(lambda: gone(family))
    assert world.is_preloaded(), "the server works on"


def test_kill_9_of_the_server_ends_the_stage_and_is_reported(world: World) -> None:
    client = world.start(FAMILY.format(before="signal.signal(signal.SIGTERM, signal.SIG_IGN)"))
    family = world.family()
    world.server.kill()
    _, complained = client.communicate(timeout=60)
    assert client.returncode == 1 and "was killed, and the stage with it; run the same command again" in complained
    until(lambda: gone(family))
    assert not world.is_preloaded(), "the next stage does without"


def test_ranks_of_a_stage_are_forked_too(world: World) -> None:
    rank = (
        "import gated; print(gated.IMPORTED_BY == os.getpid(), sorted(os.environ.keys() & {'RANK', 'PACO_PRELOADED'}))"
    )
    body = LAUNCHES.format(launcher="raise SystemExit(rank.wait())", rank=rank)
    assert world.run(body) == (0, "False ['RANK']\n", "")
    assert world.run(body, cold=True) == (0, "True ['RANK']\n", "")
    assert world.is_preloaded(**{FOR_RANKS: "of another run"})


def test_kill_9_of_a_launcher_ends_its_ranks(world: World) -> None:
    stage = world.start(LAUNCHES.format(launcher="rank.wait()", rank=FAMILY.format(before="")))
    family = world.family()
    (launcher,) = {
        process for process in psutil.Process(world.server.pid).children() if process.pid not in {p.pid for p in family}
    }
    launcher.kill()
    until(lambda: gone(family))
    assert stage.wait(timeout=60) == -signal.SIGKILL


def test_two_stages_run_at_once(world: World) -> None:
    meet = """
import os, pathlib, time
pathlib.Path(f"here-{os.getpid()}").touch()
while len(list(pathlib.Path.cwd().glob("here-*"))) < 2:
    time.sleep(0.02)
"""
    for process in [world.start(meet), world.start(meet)]:
        assert process.wait(timeout=60) == 0
        process.communicate()


@pytest.mark.parametrize("stage", ["y", ""])
def test_a_stage_that_the_server_is_not_for_does_not_wait(world: World, stage: str) -> None:
    with importing(world) as other:
        environment = other.environment(stage)
        command = [sys.executable, "-m", "paco_core", "run", "x"]
        (world.root / "stage.py").write_text("print('made')")
        done = subprocess.run(command, cwd=world.root, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "made\n")


def test_a_stage_waits_while_the_libraries_are_imported(world: World) -> None:
    with importing(world) as other:
        waiting = other.start("import gated, os; print(gated.IMPORTED_BY == os.getpid())")
        until((world.root / "importing").exists)
        assert waiting.poll() is None
        (world.root / "gate").unlink()
        assert waiting.communicate(timeout=60)[0] == "False\n"


def test_a_stop_during_the_imports_ends_server_and_client(world: World) -> None:
    with importing(world) as other:
        waiting = other.start("print('made')")
        until((world.root / "importing").exists)
        until(lambda: bool(psutil.Process(waiting.pid).net_connections("unix")))
        os.killpg(waiting.pid, signal.SIGINT)
        said, complained = waiting.communicate(timeout=60)
        assert (waiting.returncode, said, complained) == (130, "", "")
        other.server.send_signal(signal.SIGINT)
        assert other.server.wait(timeout=60) == 143
    assert not other.place.exists()


def test_other_surroundings_are_no_place_for_the_libraries(world: World) -> None:
    assert world.is_preloaded() and world.is_preloaded(DVC_STAGE="x", PS1="$ ")
    assert not world.is_preloaded(OMP_NUM_THREADS="7")
    status, said, complained = world.run("print('made')", OMP_NUM_THREADS="7", A_TOKEN="s3cret")
    assert (status, said) == (0, "made\n")
    assert complained.startswith("paco run: A_TOKEN, OMP_NUM_THREADS: not what it was") and "s3cret" not in complained
    (world.root / "params.yaml").write_text("threads: 7")
    assert not world.is_preloaded()


def test_a_server_that_is_to_end_waits_for_its_stages(world: World) -> None:
    body = """
import pathlib, time, os
pathlib.Path("family").write_text(str(os.getpid()))
while not pathlib.Path("done").exists():
    time.sleep(0.02)
print("made")
"""
    client = world.start(body)
    world.family()
    world.server.send_signal(signal.SIGTERM)
    until(lambda: not accepts(world.place))
    assert world.server.poll() is None and not world.is_preloaded()
    (world.root / "done").touch()
    assert client.communicate(timeout=60)[0] == "made\n" and client.returncode == 0
    assert world.server.wait(timeout=60) == 0 and not world.place.parent.exists()


def accepts(place: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(place)) == 0


def test_what_is_no_request_harms_nobody(world: World) -> None:
    for data in (
        b"",
        b"\0",
        b"\xff" * 8,
        (3).to_bytes(8, "big") + b"abc",
        (2).to_bytes(8, "big") + b"{}",
        (2).to_bytes(8, "big") + b"[]",
    ):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(world.place))
            client.sendall(data)
    assert world.is_preloaded()


#: Says which modules of big libraries the modules of stages still import when all that is preloaded is.
MISSED = """
import importlib, json, sys
from paco_core.runtime.launch import stage_names
from paco_core.runtime.preloading.server import LIBRARIES, preload
preload()
known = set(sys.modules)
for name in stage_names():
    importlib.import_module(f"paco_core.stages.{name}")
heavy = {name.partition(".")[0] for name in LIBRARIES}
missed = sorted(name for name in set(sys.modules) - known if name.partition(".")[0] in heavy)
print(json.dumps([sorted(set(LIBRARIES) - known), missed]))
"""


def test_the_libraries_exist_and_are_those_of_the_stages() -> None:
    done = subprocess.run([sys.executable, "-c", MISSED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    absent, missed = json.loads(done.stdout.splitlines()[-1])
    assert absent == [] and len(missed) < 5, missed
