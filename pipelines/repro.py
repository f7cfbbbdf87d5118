"""``dvc repro`` with several stages at a time: ``python -m pipelines.repro --jobs 2``.

DVC runs one stage after another, and a stage of ours hardly uses more than one core. Here each stage that is not up to
date is a ``dvc repro --single-item`` of its own and starts as soon as all that it reads is made; the plain
``dvc repro`` at the end has the last word.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

from pipelines.dvc.process import DVC, end_group, interrupt_on, search_path
from pipelines.dvc.project import DvcProject
from pipelines.dvc.state import ProjectState
from pipelines.dvc.templating import DvcProjectError
from pipelines.dvc.tidying import release_dead_locks

GRACE_SECONDS = 8.0
#: What DVC prints around a stage that goes well. ``--quiet`` would hide its errors, too: a full disk, a missing file.
_CHATTER = re.compile(
    r"Running stage '.*':$|> |(Generating|Updating) lock file '|Stage '.*' didn't change, skipping$"
    r"|To track the changes with git, run:$|\tgit add |To enable auto staging, run:$|\tdvc config core\.autostage true$"
    r"|Use `dvc push` to send your updates|Data and pipelines are up to date\.$"
)
Say = Callable[[str], None]


def out_of_date(project: DvcProject) -> dict[str, set[str]]:
    """Each stage that has to run or reads what such a one makes, with those of them that it waits for."""
    found: dict[str, set[str]] = {}
    for state in ProjectState(project).all():  # producers first
        name = state.stage.name
        before = {upstream for upstream in project.upstream[name] if upstream in found}
        if before or not state.in_sync:
            found[name] = before
    return found


def say(line: str) -> None:
    print(line, flush=True)


class _Running:
    """A stage under way; its lines are told with its name before them."""

    def __init__(self, root: Path, name: str, say: Say) -> None:
        self.name, self._say, self._began = name, say, time.monotonic()
        # A session of its own: Ctrl-C reaches this process only, which ends the stages in order.
        self.child = subprocess.Popen(
            [*DVC, "--wait-for-lock", "repro", "--single-item", name],
            cwd=root, env=_environment(), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._pump = threading.Thread(target=self._tell, daemon=True)
        self._pump.start()

    def _tell(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            text = line.decode(errors="replace").rstrip()
            if text and not _CHATTER.match(text):
                self._say(f"[{self.name}] {text}")

    def ended(self) -> bool:
        """Whether DVC is gone; says so once all that the stage said is told."""
        if self.child.poll() is None:
            return False
        if self.child.returncode < 0:  # killed by another hand: its children are orphans
            end_group(self.child, GRACE_SECONDS)
        self._pump.join(5)  # a server that the stage left behind may hold the pipe open
        how = "done" if self.child.returncode == 0 else f"FAILED (dvc ended with {self.child.returncode})"
        self._say(f"[{self.name}] {how} in {time.monotonic() - self._began:.0f} s")
        return True


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": search_path()}


def reproduce(root: Path, jobs: int, say: Say = say) -> int:
    """Run what is out of date, up to ``jobs`` stages at a time; the exit status.

    After a failure no further stage starts, and those under way are waited for: their work is kept.

    Raises:
        DvcProjectError: for a malformed ``dvc.yaml``, ``params.yaml`` or ``dvc.lock``.
        KeyboardInterrupt: after a signal, when the stages under way have ended.
    """
    project = DvcProject(root)
    place = {name: number for number, name in enumerate(project.stages)}
    order = TopologicalSorter(out_of_date(project) if jobs > 1 else {})
    order.prepare()
    ready: list[str] = []
    running: list[_Running] = []
    failed: list[str] = []
    try:
        while (order.is_active() and not failed) or running:
            ready = sorted([*ready, *order.get_ready()], key=place.__getitem__)  # as dvc.yaml lists them
            while ready and len(running) < jobs and not failed:
                running.append(_Running(root, ready.pop(0), say))
            for stage in [stage for stage in running if stage.ended()]:
                running.remove(stage)
                failed += [stage.name] if stage.child.returncode else []
                order.done(stage.name)
            time.sleep(0.1)
    finally:
        for stage in running:
            end_group(stage.child, GRACE_SECONDS)
            release_dead_locks(root)  # those of a DVC that had to be killed
    if failed:
        say(f"{', '.join(failed)} failed; what is finished is kept, and the next run goes on from there")
        return 1
    return subprocess.run([*DVC, "repro"], cwd=root, env=_environment()).returncode


def main() -> None:
    """``python -m pipelines.repro [--jobs 2]``, from the project root."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.repro", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="how many stages run at a time (default: 2)")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs}: at least 1")
    interrupt_on(signal.SIGINT, signal.SIGTERM)  # SIGINT too: a shell's background job starts with it ignored
    try:
        raise SystemExit(reproduce(Path.cwd(), arguments.jobs))
    except DvcProjectError as error:
        raise SystemExit(f"repro: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("repro: stopped; the next run goes on from here") from None


if __name__ == "__main__":
    main()
