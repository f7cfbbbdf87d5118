"""A run in which every stage is up to date takes one process; one in which a stage has to run, a process a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

import dvc_graphs as graphs

pytestmark = pytest.mark.slow

CODE = """
import sys
from pathlib import Path
import dagster as dg
from dagster_dvc import DvcProject, build_whole_graph_job, in_process_if_up_to_date
sys.path.append({here!r})
import dvc_graphs as graphs

project = DvcProject(Path({root!r}))
quiet = {{"loggers": {{"console": {{"config": {{"log_level": "INFO"}}}}}}}}
defs = dg.Definitions.merge(
    graphs.definitions(project.root),
    dg.Definitions(
        jobs=[build_whole_graph_job(project, config=quiet)],
        executor=in_process_if_up_to_date(dg.multiprocess_executor, project),
    ),
)
"""


def launch(root: Path, **tags: str) -> tuple[str, list[str]]:
    """Run the whole graph by Dagster's command; how its steps ran, and the lines in the terminal."""
    home = root / "home"
    home.mkdir(exist_ok=True)
    (root / "defined.py").write_text(CODE.format(here=graphs.FOLDER, root=str(root)))
    command = ["job", "execute", "-f", "defined.py", "-j", "whole_graph", "--tags", json.dumps(tags)]
    done = subprocess.run(
        [sys.executable, "-m", "dagster", *command],
        cwd=root, env={**os.environ, "DAGSTER_HOME": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with dg.DagsterInstance.from_config(str(home)) as instance:
        (run,) = instance.get_runs(limit=1)
        said = " ".join(
            str(entry.dagster_event.message) for entry in instance.all_logs(run.run_id) if entry.dagster_event
        )
        checks = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION).records
        assert len(checks) == 3, "each asset's check answers in either way"
    processes, here = "using multiprocess executor" in said, "Executing steps in process" in said
    assert processes != here
    return "processes" if processes else "here", done.stderr.splitlines()


def test_steps_have_processes_of_their_own_only_where_a_stage_has_to_run(tmp_path: Path) -> None:
    root = graphs.make_chain(tmp_path)
    assert launch(root)[0] == "processes"
    place, lines = launch(root)
    assert place == "here"
    assert [line for line in lines if "unchanged" in line] and not [line for line in lines if "STEP_" in line]
    assert launch(root, **{"dvc/force": "true"})[0] == "processes"
