"""Runs DVC on the node that a scheduler chose: ``python -m dagster_dvc.remote --stage S -- dvc repro ...``.

The project's folder is the working folder, seen by this node and by Dagster's alike. SIGTERM, which schedulers send
before they kill, ends DVC and its stage in order and tidies up, here where the process ids mean something.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from dagster_dvc.process import Completed, run_group, tidy_up
from dvc_project.paths import replace_text
from dvc_project.process_group import interrupt_on
from dvc_project.project import DvcProject

STOPPED = 128 + signal.SIGTERM
DAY_S = 86_400


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number <= DAY_S:
        raise argparse.ArgumentTypeError(f"{text}: expected a number from 0 to {DAY_S}")
    return number


def main(argv: list[str]) -> int:
    """The exit status of DVC, 143 after SIGTERM; also written to ``--status``, whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", required=True)
    parser.add_argument("--grace", type=_seconds, default=8.0, help="seconds that a stopped stage has to end in order")
    parser.add_argument("--status", type=Path, help="file for the exit status")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    project = DvcProject(Path.cwd())
    interrupt_on(signal.SIGTERM)

    def stopped(completed: Completed) -> None:
        for line in tidy_up(project, project.stages[arguments.stage], completed):
            print(line, file=sys.stderr, flush=True)

    command = arguments.command[arguments.command[:1] == ["--"] :]
    try:
        code = run_group(command, project.root, os.environ, arguments.grace, stopped).returncode
    except KeyboardInterrupt:
        code = STOPPED
    code = code if code >= 0 else 128 - code
    if arguments.status is not None:
        replace_text(arguments.status, str(code))
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
