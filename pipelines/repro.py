"""``dvc repro`` with several stages at a time: ``python -m pipelines.repro --jobs 2``.

DVC runs one stage after another, and a stage of ours hardly uses more than one core. Here each stage that is not up to
date is a ``dvc repro --single-item`` of its own and starts as soon as all that it reads is made; stages that could only
run one after another share one. The plain ``dvc repro`` at the end has the last word.
Meanwhile a page fills with what is done: :mod:`pipelines.progress.page`.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path

from dagster_dvc.half_written import put_aside
from dagster_dvc.process import DVC, end_group, forget_group, interrupt_on, search_path, start_group
from dagster_dvc.tidying import release_dead_locks
from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject
from dvc_project.state import ProjectState
from paco_core.config.graph_keys import cause
from paco_core.io.messages import of_system
from paco_core.io.numbers import whole
from paco_core.io.project import ensure_user
from paco_core.runtime.code.derived import present_code
from pipelines.progress.page import PAGE, ProgressPage

GRACE_SECONDS, POLL_SECONDS = 8.0, 0.02
#: What DVC prints around a stage that goes well. ``--quiet`` would hide its errors, too: a full disk, a missing file.
_CHATTER = re.compile(
    r"Running stage '.*':$|> |(Generating|Updating) lock file '|Stage '.*' didn't change, skipping$"
    r"|To track the changes with git, run:$|\tgit add |To enable auto staging, run:$|\tdvc config core\.autostage true$"
    r"|Use `dvc push` to send your updates|Data and pipelines are up to date\.$"
)
_TURNS_TO = re.compile(r"(Running stage|ERROR: failed to reproduce) '(?P<name>[^']*)'")  # one may fail before it runs
Say = Callable[[str], None]


def out_of_date(project: DvcProject) -> dict[str, set[str]]:
    """Each stage that has to run or reads what such a one makes, with those of them that it waits for.

    In the order of ``dvc.yaml``.
    """
    found: dict[str, set[str]] = {}
    for state in ProjectState(project).all():  # producers first
        name = state.stage.name
        before = {upstream for upstream in project.upstream[name] if upstream in found}
        if before or not state.in_sync:
            found[name] = before
    return {name: found[name] for name in project.stages if name in found}


def ready(waits: Mapping[str, Set[str]], done: Set[str]) -> list[str]:
    """Stages not done of which all that they wait for is."""
    return [name for name, before in waits.items() if name not in done and before <= done]


def chain(waits: Mapping[str, Set[str]], done: Set[str]) -> list[str]:
    """The stages that follow one another with never a second one that could run beside."""
    found: list[str] = []
    while len(following := ready(waits, done | set(found))) == 1:
        found += following
    return found


def say(line: str) -> None:
    print(line, flush=True)


class _Running:
    """A DVC at work on stages, one after another; their lines are printed with the stage's name before them."""

    def __init__(self, root: Path, names: Sequence[str], say: Say, page: ProgressPage) -> None:
        self.names = names
        self._say, self._page = say, page
        self.name, self._began = names[0], time.monotonic()
        self._page.runs(self.name)
        self.child = start_group(
            [*DVC, "--wait-for-lock", "repro", "--single-item", *names],
            cwd=root, env=_environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._pump = threading.Thread(target=self._forward, daemon=True)
        self._pump.start()

    def _forward(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            text = line.decode(errors="replace").rstrip()
            if (turns_to := _TURNS_TO.match(text)) and turns_to["name"] != self.name:
                self._end(0)
                self.name, self._began = turns_to["name"], time.monotonic()
                self._page.runs(self.name)
            if text and not _CHATTER.match(text):
                message = text.removeprefix(f"{self.name}: ")  # a stage may print its name itself
                self._page.log_line(self.name, message)
                self._say(f"[{self.name}] {message}")

    def ended(self) -> bool:
        """Whether DVC is gone; reports it once all output of the stage is printed."""
        if self.child.poll() is None:
            return False
        if self.child.returncode < 0:  # killed by another hand: its children are orphans
            end_group(self.child, GRACE_SECONDS)
        forget_group(self.child)
        self._pump.join(5)  # a server that the stage left behind may hold the pipe open
        self._end(self.child.returncode)
        return True

    def _end(self, status: int) -> None:
        seconds = time.monotonic() - self._began
        self._page.done(self.name, seconds, failed=status != 0)
        self._say(f"[{self.name}] {f'FAILED (dvc ended with {status})' if status else 'done'} in {seconds:.0f} s")


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": search_path()}


def reproduce(root: Path, jobs: int, say: Say = say) -> int:
    """Run what is out of date, up to ``jobs`` stages at a time; the exit status.

    After a failure no further stage starts, and those under way are waited for: their work is kept.

    Raises:
        DvcProjectError: for a malformed ``dvc.yaml``, ``params.yaml`` or ``dvc.lock``.
        KeyboardInterrupt: after a signal, when the stages under way have ended.
    """
    for line in put_aside(root):
        say(line)
    project = DvcProject(root, present_code)
    waits = out_of_date(project) if jobs > 1 else {}
    if waits:
        say(f"watch: {(root / PAGE).resolve().as_uri()}")
        with ProgressPage(project, waits.keys()) as page:
            if failed := _stages(root, waits, jobs, say, page):
                say(f"{', '.join(failed)} failed; what is finished is kept, and the next run resumes from there")
                return 1
    return _plainly(root, say)


def _stages(root: Path, waits: Mapping[str, Set[str]], jobs: int, say: Say, page: ProgressPage) -> list[str]:
    """Run the stages, up to ``jobs`` at a time; those that failed."""
    done: set[str] = set()
    running: list[_Running] = []
    failed: list[str] = []
    try:
        while (len(done) < len(waits) and not failed) or running:
            if not failed:
                running += [_Running(root, names, say, page) for names in _next(waits, done, running, jobs)]
            for dvc in [dvc for dvc in running if dvc.ended()]:
                running.remove(dvc)
                failed += [dvc.name] if dvc.child.returncode else []
                done.update(dvc.names)
            time.sleep(POLL_SECONDS)
    finally:
        for dvc in running:
            end_group(dvc.child, GRACE_SECONDS)
        if running:
            _repair(root, say)
    return failed


def _repair(root: Path, say: Say) -> None:
    """After DVCs were stopped: they may leave half a file of their own, and locks of processes that are gone."""
    for line in put_aside(root):
        say(line)
    release_dead_locks(root)


def _plainly(root: Path, say: Say) -> int:
    """``dvc repro``; its exit status."""
    dvc = start_group([*DVC, "repro"], cwd=root, env=_environment())
    try:
        return dvc.wait()
    except BaseException:
        end_group(dvc, GRACE_SECONDS)
        _repair(root, say)
        raise
    finally:
        forget_group(dvc)


def _next(waits: Mapping[str, Set[str]], done: Set[str], running: Sequence[_Running], jobs: int) -> list[list[str]]:
    """What to start now, stages of one DVC together."""
    if not running and (alone := chain(waits, done)):
        return [alone]
    taken = {name for dvc in running for name in dvc.names}
    return [[name] for name in ready(waits, done) if name not in taken][: jobs - len(running)]


def main() -> None:
    """``python -m pipelines.repro [--jobs 2]``, from the project root."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.repro", description=__doc__)
    parser.add_argument("--jobs", type=whole(1, 1000), default=2, help="how many stages run at a time (default: 2)")
    arguments = parser.parse_args()
    ensure_user()
    interrupt_on(signal.SIGINT, signal.SIGTERM)  # SIGINT too: a shell's background job starts with it ignored
    try:
        raise SystemExit(reproduce(Path.cwd(), arguments.jobs))
    except (DvcProjectError, OSError) as error:
        message = of_system(error) if isinstance(error, OSError) else cause(error, Path.cwd())
        if message is None:
            raise
        raise SystemExit(f"repro: {message}") from None
    except KeyboardInterrupt:
        raise SystemExit("repro: stopped; the next run resumes from here") from None


if __name__ == "__main__":
    main()
