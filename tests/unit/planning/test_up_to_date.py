"""`paco check` prices what would run, and says so where that is nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dvc_project import lockfile
from dvc_project.project import DvcProject
from dvc_project.state import ProjectState
from paco_core.cli import commands
from paco_core.cli.commands import main
from paco_core.planning import preflight
from paco_core.planning.preflight import Preflight, check_project
from paco_core.runtime.code.stage_code import present_code
from paco_core.stages import declared
from tests.support import provenance_world as world


@pytest.fixture
def finished(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of five stages, all up to date, with whole parameters; its code is a stand-in."""
    monkeypatch.setattr(preflight, "_changed_code", lambda _project, _lock: [])
    monkeypatch.setattr(commands, "validate_code_origin", lambda _root: None)
    return world.make_whole(project)


def check(root: Path) -> Preflight:
    return check_project(root, declared(root))


def test_where_all_is_up_to_date_nothing_is_priced(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reads, read = list[Path](), lockfile.read_data
    monkeypatch.setattr(lockfile, "read_data", lambda path, *arguments: reads.append(path) or read(path, *arguments))
    report = check(finished)
    assert reads == [finished / "dvc.lock"], "once for all stages"
    assert report.costs == {} and "policies@flux_t2is" in report.up_to_date
    text = report.text()
    assert "nothing would run, all stages are up to date" in text
    assert "in all about" not in text and "reward_lora" not in text.partition("remark")[0]
    with pytest.raises(SystemExit):  # models are missing here
        main(["check", "--json"])
    tree = json.loads(capsys.readouterr().out)
    assert tree["costs"] == [] and tree["up_to_date"] == report.up_to_date


def test_what_changed_and_what_is_behind_it_is_priced(finished: Path) -> None:
    all_of_them = set(check(finished).up_to_date)
    params = yaml.safe_load((finished / "params.yaml").read_text())
    params["grids"]["steps"] += 1
    (finished / "params.yaml").write_text(yaml.safe_dump(params))
    report = check(finished)
    assert report.up_to_date == ["prompts"] and set(report.costs) == all_of_them - {"prompts"}
    assert f"1 stages are up to date; what the others would do, at most {len(report.costs)}" in report.text()
    state = ProjectState(DvcProject(finished, present_code))
    assert state.to_run() == {"grids@0", "grids@1", "pairs", "policies@flux_t2is"}
