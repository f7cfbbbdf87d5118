"""Stages as Slurm jobs: the same ``dvc repro --single-item``, in the same folder, on a node that Slurm chooses.

Dagster runs where ``sbatch`` works and the nodes see the project's folder and its environment, as on most clusters.
``dagster-slurm`` was weighed: it reaches a cluster by SSH, packs an environment with pixi and uploads a payload to a
folder of the run. DVC's outs, locks and cache live in the project's folder, so there is nothing to carry here.
"""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import dagster as dg
from dagster_pipes import PipesContextData
from pydantic import Field

from dagster_dvc.pipes import open_stage_session
from dagster_dvc.process import Completed
from dagster_dvc.resource import DvcResource
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.project import DvcProject, ResolvedStage

_FIRST_CHARACTERS, _LAST_CHARACTERS = 5_000, 40_000
_GONE_POLLS = 3  # a job that Slurm no longer lists may have written its status on a file system that lags


class SlurmDvcResource(DvcResource):
    """Runs stages as Slurm jobs. Tested on Slurm 22.05 of one node.

    Attributes:
        options: of ``sbatch``, for every stage (``--partition=long``).
        pools: further ones for stages of a pool (``gpu: [--gres=gpu:1]``).
        setup: shell lines before the command (``module load cuda``).
        poll_seconds: between two looks at the job.
    """

    options: list[str] = Field(default_factory=list)
    pools: dict[str, list[str]] = Field(default_factory=dict)
    setup: str = ""
    poll_seconds: float = 5.0

    def execute(
        self,
        context: dg.AssetExecutionContext,
        project: DvcProject,
        stage: ResolvedStage,
        command: Sequence[str],
        data: PipesContextData,
    ) -> tuple[Completed, list[Any]]:
        """Submit, follow and wait; a terminated run cancels its job, which tidies up on its node.

        Raises:
            dagster.Failure: when Slurm takes no job.
        """
        folder = project.root / ".dagster" / "slurm" / f"{context.run_id[:8]}-{stage.name.replace('@', '-')}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        injector = dg.PipesFileContextInjector(str(folder / "context.json"))
        reader = dg.PipesFileMessageReader(str(folder / "messages"))
        with open_stage_session(context, injector, reader, data) as session:
            environment = self.environment(session)
            script = folder / "job.sh"
            script.write_text(self._script(project, stage, command, folder))
            job = _Job(_submit(self._sbatch(project, stage, folder, script), environment), folder)
            context.log.info("%s is Slurm job %s; its output is in %s", stage.name, job.number, folder)
            try:
                completed = job.follow(self.poll_seconds)
            except BaseException:
                job.cancel(self.grace_seconds)
                raise
        return completed, list(session.get_results(implicit_materializations=False))

    def _script(self, project: DvcProject, stage: ResolvedStage, command: Sequence[str], folder: Path) -> str:
        """The job: it becomes the process that runs DVC, so that Slurm's signals reach it."""
        run = [
            sys.executable, "-m", "dagster_dvc.remote", "--stage", stage.name, "--grace", str(self.grace_seconds),
            "--status", str(folder / "status"), "--", *command,
        ]  # fmt: skip
        here = Path(__file__).parents[1]
        lines = [
            "#!/bin/bash",
            "set -e",
            f"cd {shlex.quote(str(project.root))}",
            f'export PYTHONPATH={shlex.quote(str(here))}"${{PYTHONPATH:+:$PYTHONPATH}}"',
            self.setup,
            f"exec {shlex.join(run)}",
        ]
        return "\n".join(lines) + "\n"

    def _sbatch(self, project: DvcProject, stage: ResolvedStage, folder: Path, script: Path) -> list[str]:
        pool = DagsterDvcTranslator().get_pool(project.groups[stage.group])
        warning = math.ceil(self.grace_seconds) + 20  # seconds before the time limit
        return [
            "sbatch", "--parsable", f"--job-name=dvc-{stage.name}", f"--output={folder / 'stdout'}",
            f"--error={folder / 'stderr'}", f"--signal=B:TERM@{warning}", "--no-requeue", *self.options,
            *(self.pools.get(pool, []) if pool else []), str(script),
        ]  # fmt: skip


def _submit(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The number of the new job, which gets this environment (sbatch hands it on)."""
    try:
        completed = subprocess.run(command, env=dict(environment), capture_output=True, text=True)
    except FileNotFoundError:
        raise dg.Failure("there is no sbatch on this machine: run Dagster where Slurm's commands are") from None
    if completed.returncode:
        raise dg.Failure(f"Slurm accepted no job ({' '.join(completed.stderr.split())[:1000]}): {shlex.join(command)}")
    return completed.stdout.strip().split(";")[0]


@dataclass
class _Job:
    """A submitted job and the files that it writes."""

    number: str
    folder: Path
    began: float = field(default_factory=time.monotonic)
    _copied: dict[str, int] = field(default_factory=dict)

    def follow(self, poll_seconds: float) -> Completed:
        """Forward what the job says until it has ended; how it ended."""
        missing = 0
        while True:
            code = self._status()
            is_listed = code is None and self._is_listed()
            self._forward()
            if code is not None:
                return self._completed(code, "")
            missing = 0 if is_listed else missing + 1
            if missing > _GONE_POLLS:
                return self._completed(1, f"Slurm ended job {self.number}: {self._end()}\n")
            time.sleep(poll_seconds)

    def cancel(self, grace_seconds: float) -> None:
        """SIGTERM to the job's first process, which ends the stage and tidies up; then whatever is left."""
        _slurm("scancel", "--batch", "--signal=TERM", self.number)
        deadline = time.monotonic() + grace_seconds + 5
        while time.monotonic() < deadline and self._status() is None and self._is_listed():
            time.sleep(0.2)
        _slurm("scancel", self.number)
        self._forward()

    def _status(self) -> int | None:
        with suppress(FileNotFoundError):
            return int((self.folder / "status").read_text())
        return None

    def _is_listed(self) -> bool:
        """Whether Slurm knows the job; a controller that does not answer is no sign of its end."""
        completed = _slurm("squeue", "--noheader", f"--jobs={self.number}", "--format=%T")
        if completed.returncode:
            return "Invalid job id" not in completed.stderr
        return bool(completed.stdout.strip())

    def _end(self) -> str:
        """In Slurm's words: TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, CANCELLED. From accounts, else the controller."""
        completed = _slurm("sacct", "--noheader", "--allocations", f"--jobs={self.number}", "--format=State,ExitCode")
        if completed.returncode == 0 and completed.stdout.strip():
            return " ".join(completed.stdout.split())
        job = _slurm("scontrol", "--oneliner", "show", "job", self.number).stdout.split()
        states = [word for word in job if word.startswith(("JobState=", "Reason=", "ExitCode="))]
        return " ".join(states) or "neither sacct nor scontrol has a record of it; see its node's log"

    def _forward(self) -> None:
        for name, sink in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            self._copied[name] = _copy_from(self.folder / name, self._copied.get(name, 0), sink)

    def _completed(self, code: int, note: str) -> Completed:
        stdout, stderr = (_ends(self.folder / name) for name in ("stdout", "stderr"))
        return Completed(code, stdout, stderr + note, time.monotonic() - self.began)


def _slurm(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def _copy_from(path: Path, place: int, sink: TextIO) -> int:
    """Forward what a file has behind ``place``; its new end."""
    if not path.is_file():
        return place
    with path.open("rb") as stream:
        stream.seek(place)
        data = stream.read()
    with suppress(ValueError):  # the sink was closed at the end of the step
        sink.write(data.decode(errors="replace"))
        sink.flush()
    return place + len(data)


def _ends(path: Path) -> str:
    """The beginning and the end of a file's text."""
    text = path.read_text(errors="replace") if path.is_file() else ""
    if len(text) <= _FIRST_CHARACTERS + _LAST_CHARACTERS:
        return text
    return f"{text[:_FIRST_CHARACTERS]}\n…\n{text[-_LAST_CHARACTERS:]}"
