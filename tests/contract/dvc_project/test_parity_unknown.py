"""Unsupported features of DVC: the other stages load, and the stage that uses one reports it."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from dvc.exceptions import DvcException

from dagster_dvc import DvcProject, DvcProjectError, DvcResource, build_dvc_assets, build_dvc_sources
from dagster_dvc.checks import build_in_sync_checks, in_sync
from dvc_project.state import ProjectState
from tests.support import dvc_itself


def loads(root: Path) -> DvcProject:
    """A code location with everything of the project."""
    project = DvcProject(root)
    dg.Definitions(
        assets=[*build_dvc_assets(project), *build_dvc_sources(project)],
        asset_checks=build_in_sync_checks(project),
        resources={"dvc": DvcResource(project_dir=str(root))},
    ).get_repository_def()
    return project


GRAPH = """
stages:
  bad: {cmd: echo 1 > bad, params: [broken.json: [a]], outs: [bad]}
  good: {cmd: echo 2 > good, params: [fine.json: [a]], outs: [good]}
"""


READABLE = {"broken.json": '{"a": 1}', "broken.py": "a = 1"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("broken.json", "{"),
        ("broken.json", b"\xff"),
        ("broken.json", "[1]"),
        ("broken.json", None),
        ("broken.py", "1 +"),
    ],
)
def test_a_file_of_parameters_that_cannot_be_read(tmp_path: Path, file: str, text: str | bytes | None) -> None:
    files = {"dvc.yaml": GRAPH.replace("broken.json", file), file: READABLE[file], "fine.json": '{"a": 1}'}
    root = dvc_itself.lay_out(tmp_path, files)
    dvc_itself.reproduce(root)
    if text is None:
        (root / file).unlink()
        assert dvc_itself.agreed(root) == {"bad"}
    else:
        dvc_itself.write(root, {file: text})
    project = loads(root)
    states = {state.stage.name: state for state in ProjectState(project).all()}
    assert states["good"].in_sync
    assert file in states["bad"].reasons[0] and file in str(in_sync(project, "bad").description)


INVALID = {
    "an unknown key": "stages: {a: {cmd: x, dep: [y]}}",
    "an unknown key in do": "stages: {a: {foreach: [1], do: {cmd: x, dep: [y]}}}",
    "foreach beside cmd": "stages: {a: {foreach: [1], cmd: x}}",
    "foreach beside matrix": "stages: {a: {foreach: [1], matrix: {x: [1]}, do: {cmd: x}}}",
    "do without foreach": "stages: {a: {do: {cmd: x}}}",
    "no cmd": "stages: {a: {deps: [x]}}",
    "a nested list in a command": "vars: [d: {x: [[1]]}]\nstages: {a: {cmd: 'x ${d}'}}",
    "a number in foreach": "stages: {a: {foreach: 3, do: {cmd: x}}}",
    "a number in matrix": "stages: {a: {matrix: {n: 3}, cmd: x}}",
    "no YAML": "stages: [",
    "a number as a name": "vars: [d: {7: 1}]\nstages: {a: {cmd: '${d.7}'}}",
    "a variable twice": "vars: [d: 1, d: 2]\nstages: {a: {cmd: x}}",
}


@pytest.mark.parametrize("case", INVALID)
def test_what_dvc_refuses_is_refused(tmp_path: Path, case: str) -> None:
    root = dvc_itself.lay_out(tmp_path, {"dvc.yaml": INVALID[case]})
    with pytest.raises(DvcException):
        dvc_itself.stages(root)
    with pytest.raises(DvcProjectError, match=r"dvc\.yaml|cannot be put into a command"):
        DvcProject(root)


def test_files_of_dvc_without_outs_and_of_other_folders(tmp_path: Path) -> None:
    """A `.dvc` file that tracks nothing, one with a `wdir`, and a dep that a stage of another folder makes."""
    root = dvc_itself.lay_out(
        tmp_path,
        {
            "dvc.yaml": "stages:\n  r: {cmd: cat sub/o data/f > r, deps: [sub/o, data/f], outs: [r]}\n",
            "sub/dvc.yaml": "stages:\n  o: {cmd: echo o > o, outs: [o]}\n",
            "old.dvc": "frozen: true\nouts:\n",
            "data/f": "f\n",
        },
    )
    with dvc_itself.repository(root) as repo:
        repo.add("data")
    (root / "moved.dvc").write_text((root / "data.dvc").read_text().replace("outs:", "wdir: .\nouts:"))
    (root / "data.dvc").unlink()
    dvc_itself.reproduce(root, "sub/dvc.yaml:o")
    dvc_itself.reproduce(root, "r")
    project = loads(root)
    assert [(out.path, out.file) for out in project.tracked] == [("data", "moved.dvc")]
    assert dvc_itself.agreed(root) == set() and dvc_itself.agreed(root / "sub") == set()
    dvc_itself.write(root, {"sub/o": "edited", "data/f": "edited"})
    assert dvc_itself.agreed(root) == {"r"} and dvc_itself.agreed(root / "sub") == {"o"}
