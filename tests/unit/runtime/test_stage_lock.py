"""Two processes never run one stage of one project, whatever became of the run that started the first."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dvc_project.file_locks import is_held
from paco_core.io.files import DataError
from paco_core.runtime.launch import lock_file, only_run
from paco_core.stages import run_stage

HOLD = """
import sys
from pathlib import Path
from paco_core.runtime.launch import only_run
with only_run(Path(sys.argv[1]), sys.argv[2]):
    print("up", flush=True)
    sys.stdin.read()
"""


@contextmanager
def running(root: Path, label: str) -> Iterator[subprocess.Popen[str]]:
    """Another process in the middle of a stage; killed with signal 9 at the end."""
    command = [sys.executable, "-c", HOLD, str(root), label]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "up\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_a_stage_that_still_runs_is_not_started_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(project, "prompts") as other:
        with pytest.raises(DataError, match=f"prompts .* process {other.pid} .*`kill {other.pid}`"):
            run_stage("prompts", None, project)
        assert not (project / "data").exists(), "nothing was begun"
    for _ in range(2):  # kill -9 lets go of the lock, and so does the end of a stage
        run_stage("prompts", None, project)
    assert (project / "data/prompts/prompts.jsonl").is_file() and not is_held(lock_file(project, "prompts"))


def test_other_stages_items_and_projects_run_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, "grids@0") as other:
        with only_run(tmp_path, "grids@1"), only_run(tmp_path / "cell", "grids@0"):
            host = socket.gethostname()
            monkeypatch.setattr("socket.gethostname", lambda: "head")
            with pytest.raises(DataError, match=f"grids@0 .*process {other.pid} on {host}"):
                only_run(tmp_path, "grids@0").__enter__()
        lock_file(tmp_path, "grids@0").write_text("")
        with pytest.raises(DataError, match="grids@0"):
            only_run(tmp_path, "grids@0").__enter__()
