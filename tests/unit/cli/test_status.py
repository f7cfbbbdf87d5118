"""`paco status` and `paco doctor`: what stands, why not, and what an issue needs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from paco_core.cli import doctor, status
from tests.support import provenance_world as world

POLICY, SHARDS = "policies@flux_t2is", ["grids@0", "grids@1"]


def states(root: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {line.stage: (line.state, line.why) for line in status.status(root).stages}


def change(root: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    tree = yaml.safe_load((root / "params.yaml").read_text())
    edit(tree)
    (root / "params.yaml").write_text(yaml.safe_dump(tree))


@pytest.fixture
def root(project: Path) -> Path:
    """A project whose five stages are up to date."""
    return world.make_whole(project)


def test_each_stage_is_up_to_date_or_says_why_not(root: Path) -> None:
    assert set(states(root).values()) == {("up to date", ())}
    change(root, lambda tree: tree["grids"].update(steps=tree["grids"]["steps"] + 1))
    report = states(root)
    assert [report[shard][0] for shard in SHARDS] == ["out of date"] * 2 and "grids" in report["grids@0"][1][0]
    assert report["pairs"] == ("waits", ("for grids@0 and 1 more",)) and report[POLICY] == ("waits", ("for pairs",))
    assert report["prompts"] == ("up to date", ())


def test_what_another_version_was_made_from_is_out_of_date(root: Path) -> None:
    (root / "data/pairs/train.parquet").write_text("other pairs")
    world.record(root, {"pairs": world.OUTS["pairs"]})
    assert states(root)[POLICY] == ("out of date", ("pairs changed",))


def test_stages_that_never_ran_and_one_that_runs(root: Path) -> None:
    (root / "dvc.lock").unlink()
    noted = root / ".dvc/tmp/rwlock"
    noted.parent.mkdir(parents=True, exist_ok=True)
    writes = {"data/prompts": os.getpid(), "data/pairs": 2**22 + 1}  # no process has that number
    noted.write_text(json.dumps({"write": {str(root / path): {"pid": pid} for path, pid in writes.items()}}))
    report = states(root)
    assert report["prompts"] == ("running", (f"process {os.getpid()}",))
    assert report["grids@0"] == ("never run", ("waits for prompts",)) and report["pairs"][0] == "never run"
    noted.write_text('{"write": {"data/pr')
    assert states(root)["prompts"] == ("never run", ()), "half a file of DVC's names nobody"


def test_parameters_that_no_stage_can_run_with_are_one_message(root: Path) -> None:
    """The code of a stage depends on them, so that none can be called up to date."""
    noted = root / ".dvc/tmp/rwlock"
    noted.parent.mkdir(parents=True, exist_ok=True)
    noted.write_text(json.dumps({"write": {str(root / "data/pairs"): {"pid": os.getpid()}}}))
    change(root, lambda tree: tree.pop("edit_reward"))
    report = status.status(root)
    assert [line.cells for line in report.stages] == [("pairs", f"running: process {os.getpid()}")]
    assert "'edit_reward'" in report.text().splitlines()[1]
    assert "up to date" not in report.text() and "nothing is registered" in report.text()


def test_a_section_of_ones_own_that_is_gone_is_named(root: Path) -> None:
    graph = yaml.safe_load((root / "dvc.yaml").read_text())
    graph["stages"]["pairs"]["params"] = ["mine", "grids.seeds"]
    (root / "dvc.yaml").write_text(yaml.safe_dump(graph))
    change(root, lambda tree: tree.update(mine={"count": 3}))
    world.record(root, {"pairs": world.OUTS["pairs"]})
    change(root, lambda tree: tree.pop("mine"))
    state, (why,) = states(root)["pairs"]
    assert state == "out of date" and "params.yaml has no mine" in why


def test_a_store_that_nobody_made_is_not_made_by_looking(root: Path) -> None:
    (root / "mlflow.db").unlink()
    assert status.status(root).champions.startswith("nothing is registered") and not (root / "mlflow.db").exists()


@pytest.mark.slow
def test_the_doctor_names_versions_and_hides_keys(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACO_API_KEY", "sk-0123456789abcdefghij")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://user:hidden@host/runs")
    monkeypatch.setattr(Path, "home", lambda: project.parent)
    lines = dict(line.split(": ", 1) for line in doctor.report(project).splitlines())
    assert "torch 2" in lines["packages"] and "mlflow 3" in lines["packages"] and lines["python"].startswith("3.")
    assert lines["project"].startswith("~/") and "policies flux_t2is" in lines["parameters"]
    assert "sk-0123456789" not in str(lines) and "hidden" not in str(lines) and "PACO_API_KEY=" in lines["variables"]
    (project / "params.yaml").write_text("world: [")
    assert "params.yaml" in dict(line.split(": ", 1) for line in doctor.report(project).splitlines())["parameters"]
