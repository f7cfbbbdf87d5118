"""What the library reads is what DVC itself says: stages, edges, recorded parameters, md5s of folders."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "pipelines"))
import graphs

from pipelines.dvc import DvcProject
from pipelines.dvc.state import ProjectState

TOML = """
stages:
  a:
    cmd: python put.py out/a/1 x && python put.py out/b 2
    params: [deep.json: [x.y, "list"], {flat.toml: null}]
    outs: [out]
  b:
    cmd: python put.py b ${deep.flag}
    vars: [deep.json:flags]
    deps: [out/a]
    outs: [b]
  c:
    matrix: {left: "${flags}", right: [p, q]}
    cmd: python put.py ${key} ${item.left.name}${item.right}
    deps: [b]
    outs: ["${key}"]
"""


def _edges(dot: str) -> set[tuple[str, str]]:
    return set(re.findall(r'"([^"]+)" -> "([^"]+)"', dot))


def _ours(project: DvcProject) -> set[tuple[str, str]]:
    return {(u, s) for s, upstream in project.upstream.items() for u in upstream}


def _make(name: str, root: Path) -> Path:
    if name == "chain":
        return graphs.make(root, graphs.CHAIN)
    if name == "items":
        return graphs.make_items(root)
    graph = TOML.replace("${deep.flag}", "${flags[0].name}").replace('"${flags}"', "[{name: l}, {name: m}]")
    return graphs.make(
        root, graph, "a: 1\n",
        deep__json='{"x": {"y": [1, 2.5, null]}, "list": [], "flags": [{"name": "f"}]}',
        flat__toml="on = true\nn = 3\n",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["chain", "items", "files"])
def test_stages_edges_and_record(name: str, tmp_path: Path) -> None:
    root = _make(name, tmp_path)
    project = DvcProject(root)
    assert list(project.stages) == graphs.dvc(root, "stage", "list", "--name-only").split()
    assert _ours(project) == _edges(graphs.dvc(root, "dag", "--dot"))
    graphs.dvc(root, "repro", "-q")
    lock = project.lock()
    assert set(lock) == set(project.stages)
    for stage in project.stages.values():
        entry = lock[stage.name]
        assert entry.cmd == stage.cmd
        assert entry.params == project.params(stage)
        assert set(entry.outs) == {out.path for out in stage.outs}
        assert {d: project.workspace.md5(d) for d in stage.deps} == entry.deps
    assert {s.stage.name for s in ProjectState(project).all() if not s.in_sync} == graphs.changed(root, project)


def test_our_own_graph(repository: Path, tmp_path: Path) -> None:
    for name in ("dvc.yaml", "params.yaml", ".dvcignore"):
        (tmp_path / name).write_text((repository / name).read_text())
    graphs.make(tmp_path, (repository / "dvc.yaml").read_text(), (repository / "params.yaml").read_text())
    project = DvcProject(tmp_path)
    assert list(project.stages) == graphs.dvc(tmp_path, "stage", "list", "--name-only").split()
    assert _ours(project) == _edges(graphs.dvc(tmp_path, "dag", "--dot"))
