"""A real Slurm of one node on this machine, from Debian's ``slurm-wlm`` and ``munge``: controller, node daemon, munge.

It needs root and its programs; everything it writes lies in one folder.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
CONFIG = """
ClusterName=dvc
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
KillWait=2
MpiDefault=none
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 Gres=gpu:2
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why no cluster can be started here; None where one can."""
    if os.getuid():
        return "Slurm's daemons are started as root"
    if lost := [name for name in PROGRAMS if shutil.which(name) is None]:
        return f"{', '.join(lost)}: not installed (Debian: slurm-wlm, munge)"
    return None


class Cluster:
    """The daemons; ``environment`` is what Slurm's commands need to find them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        folder = self.folder
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)
        host = socket.gethostname().partition(".")[0]
        ports = [free_port(), free_port()]
        text = CONFIG.format(host=host, folder=folder, controller=ports[0], node=ports[1])
        (folder / "slurm.conf").write_text(text)
        for number in range(2):  # GPUs that Slurm deals out; no job opens them
            (folder / f"gpu{number}").touch()
        (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={folder}/gpu[0-1]\n")
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._run("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files)
        self._wait(lambda: (folder / "munge.socket").exists(), "munged")
        self._run("slurmctld", "-D", "-f", str(folder / "slurm.conf"))
        self.start_node()

    def start_node(self) -> None:
        self._run("slurmd", "-D", "-f", str(self.folder / "slurm.conf"))
        self._wait(lambda: self.command("sinfo", "--noheader", "--format=%t").strip() == "idle", "slurmd")

    def lose_node(self) -> None:
        """End the node's daemon and every process of its jobs at once, as a power cut does."""
        lost = [process for process in psutil.process_iter() if self._of_a_job(process)]
        for process in (self._daemons.pop("slurmd"), *lost):
            with suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait(10)

    def _of_a_job(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            if process.name() == "slurmstepd":
                return True
            found = process.environ()
            return "SLURM_JOB_ID" in found and found.get("SLURM_CONF") == self.environment["SLURM_CONF"]
        return False

    def command(self, *words: str) -> str:
        done = subprocess.run(words, env={**os.environ, **self.environment}, capture_output=True, text=True)
        return done.stdout

    def stop(self) -> None:
        self.command("scancel", "--user=root")
        for daemon in ("slurmd", "slurmctld", "munged"):
            if (process := self._daemons.get(daemon)) is not None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _run(self, *words: str) -> None:
        log = (self.folder / f"{words[0]}.out").open("ab")
        environment = {**os.environ, **self.environment}
        self._daemons[words[0]] = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
        log.close()

    def _wait(self, ready: object, daemon: str) -> None:
        assert callable(ready)
        deadline = time.monotonic() + 30
        while not ready():
            if time.monotonic() > deadline or self._daemons[daemon].poll() is not None:
                said = "".join(
                    (self.folder / name).read_text(errors="replace")[-2000:]
                    for name in (f"{daemon}.out", f"{daemon}.log")
                    if (self.folder / name).is_file()
                )
                raise RuntimeError(f"{daemon} did not start: {said}")
            time.sleep(0.1)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster that is idle at first, and gone at the end."""
    found = Cluster(folder)
    try:
        found.start()
        yield found
    finally:
        found.stop()
