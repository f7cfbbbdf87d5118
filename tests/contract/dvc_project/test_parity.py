"""Parity with DVC: stages, edges, recorded parameters and md5s of folders are equal to those of DVC itself."""

from __future__ import annotations

import re
from pathlib import Path

import dagster as dg
import pytest

import dvc_graphs as graphs
from dagster_dvc import DvcProject

pytestmark = pytest.mark.slow


def _edges(dot: str) -> set[tuple[str, str]]:
    return set(re.findall(r'"([^"]+)" -> "([^"]+)"', dot))


def _ours(project: DvcProject) -> set[tuple[str, str]]:
    return {(u, s) for s, upstream in project.upstream.items() for u in upstream}


@pytest.mark.parametrize("shape", ["items", "fan"])
def test_a_shape_of_graph(shape: str, tmp_path: Path) -> None:
    """Stages, edges and record; then the marks in Dagster, warm and cold, through an edit and a run."""
    build, (file, old, new), rerun = graphs.SHAPES[shape]
    root = build(tmp_path)
    project = DvcProject(root)
    assert list(project.stages) == graphs.dvc(root, "stage", "list", "--name-only").split()
    assert _ours(project) == _edges(graphs.dvc(root, "dag", "--dot"))
    graphs.dvc(root, "repro", "-q")
    lock = project.lock()
    assert set(lock) == set(project.stages)
    for stage in project.stages.values():
        entry = lock[stage.name]
        assert entry.cmd == stage.cmd
        assert entry.inputs.params == project.params(stage)
        assert set(entry.outs) == {out.path for out in stage.outs}
        assert {d: project.workspace.md5(d) for d in stage.deps} == entry.inputs.deps
    with dg.DagsterInstance.ephemeral() as warm:
        always = {stage.name for stage in project.stages.values() if stage.always_changed}
        assert graphs.agree(root, warm) == always
        (root / file).write_text((root / file).read_text().replace(old, new))
        with dg.DagsterInstance.ephemeral() as cold:
            assert graphs.agree(root, warm, cold) > always, "the edit shows"
        graphs.dvc(root, "repro", "-q", "--single-item", rerun)
        with dg.DagsterInstance.ephemeral() as cold:
            assert rerun not in graphs.agree(root, warm, cold)


def test_our_own_graph(repository: Path, tmp_path: Path) -> None:
    for name in ("dvc.yaml", "params.yaml", ".dvcignore"):
        (tmp_path / name).write_text((repository / name).read_text())
    graphs.make(tmp_path, (repository / "dvc.yaml").read_text(), (repository / "params.yaml").read_text())
    project = DvcProject(tmp_path)
    assert list(project.stages) == graphs.dvc(tmp_path, "stage", "list", "--name-only").split()
    assert _ours(project) == _edges(graphs.dvc(tmp_path, "dag", "--dot"))
