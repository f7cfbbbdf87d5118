"""Reading dvc.yaml: items, edges, parameters, and what counts as the recipe."""

from __future__ import annotations

import subprocess
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import dvc_graphs as graphs
from dagster_dvc import DvcProject, DvcProjectError
from dvc_project import lockfile, project, templating
from dvc_project.paths import Overlaps, overlap
from dvc_project.state import ProjectState
from dvc_project.yaml import parse_yaml
from tests.support import REPOSITORY


def test_items_of_matrix_and_foreach(tmp_path: Path) -> None:
    items = DvcProject(graphs.make_items(tmp_path))
    assert [s.name for s in items.groups["shard"].stages] == ["shard@a", "shard@2", "shard@True"]
    assert [s.item for s in items.groups["train"].stages] == ["small-0", "small-1", "model1-0", "model1-1"]
    assert items.groups["train"].dimensions == {"model": ("small", "model1"), "seed": ("0", "1")}
    assert items.stages["train@model1-0"].coordinates == {"model": "model1", "seed": "0"}
    assert [out.kind for out in items.stages["kept"].outs] == ["outs", "metrics", "plots"]
    oslo = items.stages["each@oslo"]
    assert oslo.deps == ("put.py",) and [out.path for out in oslo.outs] == ["places/oslo.txt"]
    assert items.params(oslo) == {"places/params.yaml": {"start": 2}}, "beside the stage"
    assert items.params(items.stages["shard@a"]) == {"params.yaml": {"sizes.a": 0.001}}, "YAML 1.2"
    names = [stage.name for stage in items.order()]
    assert all(names.index(u) < names.index(s) for s, us in items.upstream.items() for u in us)


def test_overlaps_are_those_of_a_comparison_with_all() -> None:
    parts = ("a", "ab", "b")
    paths = [*parts, *("/".join(two) for two in product(parts, parts)), "a/b/ab", "../a", "/a/b", "s3://a/b", "a"]
    index = Overlaps((path, number) for number, path in enumerate(paths))
    for pair in product(paths, paths):
        expected = [number for number, path in enumerate(paths) if any(overlap(path, candidate) for candidate in pair)]
        assert index.of(pair) == expected


def test_each_file_is_read_once_for_all_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = "{foreach: '${shards}', do: {cmd: 'x ${item} ${rate}', params: [rate], outs: ['shards/${item}']}}"
    graph = f"stages: {{shard: {shard}, gather: {{cmd: x, deps: [shards], outs: [gathered]}}}}"
    root = graphs.make(tmp_path, graph, f"rate: 1\nshards: {list(range(40))}\n")
    reads: Counter[str] = Counter()
    for module in (project, templating, lockfile):

        def counted(path: Path, *args: Any, read: Any = module.read_data) -> Any:  # type: ignore[attr-defined]
            reads[path.name] += 1
            return read(path, *args)

        monkeypatch.setattr(module, "read_data", counted)
    items = DvcProject(root)
    assert len(ProjectState(items).all()) == 41 and len(items.upstream["gather"]) == 40
    assert reads == {"dvc.yaml": 1, "params.yaml": 2}, "its variables, and the parameters of its stages"


def test_a_text_that_was_parsed_before_is_another_tree() -> None:
    first = parse_yaml("a: {b: [1]}")
    first["a"]["b"].append(2)
    assert parse_yaml("a: {b: [1]}") == {"a": {"b": [1]}}


def test_code_version_follows_command_parameters_and_code_but_not_other_keys(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN, "a: {text: hello}\nother: 1\n")
    before = {name: DvcProject(root).code_version(name) for name in "abc"}
    (root / "params.yaml").write_text("a: {text: hello}\nother: 2\n")
    assert {name: DvcProject(root).code_version(name) for name in "abc"} == before
    (root / "params.yaml").write_text("a: {text: bye}\n")
    after = {name: DvcProject(root).code_version(name) for name in "abc"}
    assert after["a"] != before["a"] and after["b"] == before["b"]
    (root / "put.py").write_text(graphs.PUT + "# more\n")
    assert DvcProject(root).code_version("b") != before["b"]


def test_a_cycle_is_named(tmp_path: Path) -> None:
    graph = "stages: {a: {cmd: x, deps: [b], outs: [a]}, b: {cmd: x, deps: [a], outs: [b]}}"
    with pytest.raises(DvcProjectError, match="cycle: .*a.*b"):
        DvcProject(graphs.make(tmp_path, graph)).order()


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="no git checkout")
def test_git_ignores_every_out_that_dvc_keeps() -> None:
    """Else DVC writes the entry during the first run, and git shows a changed file."""
    outs = {out.path for stage in DvcProject(REPOSITORY).stages.values() for out in stage.outs if out.cache}
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    ignored = subprocess.run(command, cwd=REPOSITORY, input="\n".join(outs), capture_output=True, text=True).stdout
    assert outs - set(ignored.splitlines()) == set()
