"""``dvc repro`` with several stages at a time: ``python -m dvc_project.repro --jobs 2``, for any DVC project.

DVC runs one stage after another. Here each stage that is out of date is a ``dvc repro --single-item`` of its own and
starts as soon as the stages that it waits for have ended. Stages that can only follow one another share one DVC. At the
end a plain ``dvc repro`` has the last word, so the results and ``dvc.lock`` are those of ``dvc repro``.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

from dvc_project.errors import DvcProjectError
from dvc_project.process_group import DVC, end_group, forget_group, interrupt_on, search_path, start_group
from dvc_project.project import DvcProject
from dvc_project.rwlock import release_dead_locks
from dvc_project.state import ProjectState

GRACE_SECONDS, POLL_SECONDS = 8.0, 0.02
#: What DVC prints around a stage that succeeds. ``--quiet`` would hide its errors, too: a full disk, a missing file.
_CHATTER = re.compile(
    r"Running stage '.*':$|> |(Generating|Updating) lock file '|Stage '.*' didn't change, skipping$"
    r"|To track the changes with git, run:$|\tgit add |To enable auto staging, run:$|\tdvc config core\.autostage true$"
    r"|Use `dvc push` to send your updates|Data and pipelines are up to date\.$"
)
_NEXT_STAGE = re.compile(r"(Running stage|ERROR: failed to reproduce) '(?P<name>[^']*)'")  # one may fail before it runs


def stages_to_run(project: DvcProject, finished: Set[str] = frozenset()) -> dict[str, set[str]]:
    """Each stage that is out of date or reads what such a stage writes, with those of them that it waits for.

    Args:
        finished: stages that DVC has run or skipped. Only their outs count.
    """
    waits: dict[str, set[str]] = {}
    for state in ProjectState(project).all():  # producers first
        name = state.stage.name
        upstream = {producer for producer in project.upstream[name] if producer in waits}
        if name not in finished and (upstream or not state.in_sync):
            waits[name] = upstream
    return {name: waits[name] for name in project.stages if name in waits}  # in the order of dvc.yaml


def ready_stages(waits: Mapping[str, Set[str]], finished: Set[str] = frozenset()) -> list[str]:
    """The stages that are not done and wait for no other."""
    return [name for name, upstream in waits.items() if name not in finished and upstream <= finished]


def single_file(waits: Mapping[str, Set[str]]) -> list[str]:
    """The next stages that can only run one after another."""
    names: list[str] = []
    while len(following := ready_stages(waits, set(names))) == 1:
        names += following
    return names


class _DvcProcess:
    """A DVC that runs stages one after another; it prints their lines after the name of the stage."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.names, self.name, self._start = names, names[0], time.monotonic()
        self.child = start_group(
            [*DVC, "--wait-for-lock", "repro", "--single-item", *names],
            cwd=root, env={**os.environ, "PATH": search_path()},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._printer = threading.Thread(target=self._print, daemon=True)
        self._printer.start()

    def _print(self) -> None:
        assert self.child.stdout is not None
        for text in _lines(self.child.stdout):
            if (match := _NEXT_STAGE.match(text)) and match["name"] != self.name:
                self._print_end(0)
                self.name, self._start = match["name"], time.monotonic()
            if not _CHATTER.match(text):
                print(f"[{self.name}] {text.removeprefix(f'{self.name}: ')}", flush=True)

    def has_ended(self) -> bool:
        """Whether DVC has ended; by then all output of its stages is printed."""
        if self.child.poll() is None:
            return False
        if self.child.returncode < 0:  # killed from outside: its children are orphans
            end_group(self.child, GRACE_SECONDS)
        forget_group(self.child)
        self._printer.join(5)  # a server that the stage left behind may keep the pipe open
        self._print_end(self.child.returncode)
        return True

    def _print_end(self, status: int) -> None:
        outcome = f"FAILED (dvc ended with {status})" if status else "done"
        print(f"[{self.name}] {outcome} in {time.monotonic() - self._start:.0f} s", flush=True)


def reproduce(root: Path, jobs: int) -> int:
    """Run the stages that are out of date, up to ``jobs`` at a time; returns the exit status.

    After a failure no further stage starts, and running stages are waited for: their results are kept.

    Raises:
        DvcProjectError: for a malformed ``dvc.yaml``, ``params.yaml`` or ``dvc.lock``.
        KeyboardInterrupt: after a signal, when the running stages have ended.
    """
    release_dead_locks(root)
    project = DvcProject(root)
    try:
        if jobs > 1 and (failed := _run_stages(project, jobs)):
            message = f"{', '.join(failed)} failed; what is finished is kept, and the next run resumes from there"
            print(message, flush=True)
            return 1
        return _run_plain(root, short=jobs > 1)
    except KeyboardInterrupt:
        release_dead_locks(root)
        raise


def _run_stages(project: DvcProject, jobs: int) -> list[str]:
    """Run the stages, up to ``jobs`` at a time; returns those that failed."""
    finished: set[str] = set()
    failed: list[str] = []
    running: list[_DvcProcess] = []
    waits = stages_to_run(project)
    try:
        while running or (waits and not failed):
            if not failed:
                running += [_DvcProcess(project.root, names) for names in _next(waits, running, jobs)]
            if exited := [dvc for dvc in running if dvc.has_ended()]:
                running = [dvc for dvc in running if dvc not in exited]
                failed += [dvc.name for dvc in exited if dvc.child.returncode]
                finished.update(name for dvc in exited for name in dvc.names)
                waits = stages_to_run(project, finished)  # fewer, where a stage wrote the same bytes as before
            time.sleep(POLL_SECONDS)
    finally:
        for dvc in running:
            end_group(dvc.child, GRACE_SECONDS)
    return failed


def _next(waits: Mapping[str, Set[str]], running: Sequence[_DvcProcess], jobs: int) -> list[list[str]]:
    """The stages to start now; those of one list share a DVC."""
    if not running and (names := single_file(waits)):
        return [names]
    started = {name for dvc in running for name in dvc.names}
    return [[name] for name in ready_stages(waits) if name not in started][: jobs - len(running)]


def _run_plain(root: Path, *, short: bool) -> int:
    """``dvc repro``; returns its exit status.

    Args:
        short: print the number of stages that are up to date instead of a line for each.
    """
    pipes: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if short else {}
    dvc = start_group([*DVC, "repro"], cwd=root, env={**os.environ, "PATH": search_path()}, **pipes)
    try:
        if dvc.stdout is not None:
            _print_short(dvc.stdout)
        return dvc.wait()
    except KeyboardInterrupt:
        end_group(dvc, GRACE_SECONDS)
        raise
    finally:
        forget_group(dvc)


def _lines(output: Iterable[bytes]) -> Iterator[str]:
    """The lines of a process that are not empty."""
    for line in output:
        if text := line.decode(errors="replace").rstrip():
            yield text


def _print_short(output: Iterable[bytes]) -> None:
    up_to_date = 0
    for text in _lines(output):
        up_to_date += text.endswith(" didn't change, skipping")
        if not _CHATTER.match(text):
            print(text, flush=True)
    print(f"{up_to_date} stages are up to date", flush=True)


def _jobs(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text}: expected a number from 1 to 1000")
    return int(text)


def main() -> None:
    """``python -m dvc_project.repro [--jobs 2]``, in the folder of ``dvc.yaml``."""
    parser = argparse.ArgumentParser(description="dvc repro with several stages at a time")
    parser.add_argument("--jobs", type=_jobs, default=2, help="the number of stages that run at a time (default: 2)")
    jobs = parser.parse_args().jobs
    interrupt_on(signal.SIGINT, signal.SIGTERM)  # SIGINT too: a background job of a shell starts with it ignored
    try:
        raise SystemExit(reproduce(Path.cwd(), jobs))
    except (DvcProjectError, OSError) as error:
        raise SystemExit(f"repro: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit("repro: stopped; the next run resumes from here") from None


if __name__ == "__main__":
    main()
