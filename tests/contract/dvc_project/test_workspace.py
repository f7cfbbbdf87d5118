"""Reading dvc.yaml: variables, items, edges, parameters, and what counts as the recipe."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import dvc_graphs as graphs
from dagster_dvc import DvcProject, DvcProjectError
from dvc_project.hashing import Workspace
from dvc_project.reading import read_data
from dvc_project.templating import Variables
from tests.support import REPOSITORY


@pytest.fixture
def items(tmp_path: Path) -> DvcProject:
    return DvcProject(graphs.make_items(tmp_path))


def test_items_of_matrix_and_foreach(items: DvcProject) -> None:
    assert [s.name for s in items.groups["shard"].stages] == ["shard@a", "shard@2", "shard@True"]
    assert [s.item for s in items.groups["train"].stages] == ["small-0", "small-1", "model1-0", "model1-1"]
    assert items.groups["train"].dimensions == {"model": ("small", "model1"), "seed": ("0", "1")}
    assert items.stages["each@rome"].cmd == "python ../put.py rome.txt Rome"
    assert items.stages["listed@two"].outs[0].path == "listed/two"


def test_paths_are_relative_to_the_working_folder_of_the_stage(items: DvcProject) -> None:
    stage = items.stages["each@oslo"]
    assert stage.deps == ("put.py",)
    assert [(o.path, o.cache) for o in stage.outs] == [("places/oslo.txt", False)]
    assert items.params(stage) == {"places/params.yaml": {"start": 2}}


def test_edges_by_out_inside_dep_and_dep_inside_out(items: DvcProject) -> None:
    assert items.upstream["shard@a"] == ("source",)
    assert set(items.upstream["train@small-0"]) == {"shard@a", "shard@2", "shard@True"}
    assert items.upstream["listed@one"] == ("each@rome",)
    assert items.upstream["clock"] == ("kept", "ice")
    names = [stage.name for stage in items.order()]
    assert all(names.index(u) < names.index(s) for s, us in items.upstream.items() for u in us)


def test_flags(items: DvcProject) -> None:
    assert items.stages["ice"].frozen and not items.stages["kept"].frozen
    assert items.stages["clock"].always_changed
    kept = items.stages["kept"]
    assert [(o.path, o.kind, o.persist) for o in kept.outs] == [
        ("kept", "outs", True),
        ("figures.json", "metrics", False),
        ("curve.csv", "plots", False),
    ]


def test_parameters_are_read_as_yaml_1_2_and_cut_to_the_slice(items: DvcProject) -> None:
    assert items.params(items.stages["shard@a"]) == {"params.yaml": {"sizes.a": 0.001}}
    assert items.params(items.stages["train@small-1"]) == {"more.yaml": {"rate": 0.5}}


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


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("${a.b}", 3),
        ("x${a.b}y", "x3y"),
        ("${l[1]}", "two"),
        (r"\${a.b}", "${a.b}"),
        ("${flag} ${none}", "true None"),
        ({"k-${a.b}": ["${flag}"]}, {"k-3": [True]}),
    ],
)
def test_substitution(text: object, resolved: object) -> None:
    scope = Variables({"a": {"b": 3}, "l": ["one", "two"], "flag": True, "none": None})
    assert scope.resolve(text, "here") == resolved


def test_a_mapping_in_a_command_becomes_flags() -> None:
    scope = Variables({"o": {"lr": 0.1, "name": "a b", "on": True, "off": False, "sizes": [1, 2], "deep": {"x": "y"}}})
    assert scope.resolve("run ${o}", "here", in_cmd=True) == "run --lr 0.1 --name 'a b' --on --sizes 1 2 --deep.x y"


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ("stages: {a: {cmd: 'run ${no.such}'}}", "no.such"),
        ("stages: {a: {deps: [x]}}", "cmd is missing"),
        ("stages: {a: {cmd: x, dep: [y]}}", "unknown key 'dep'"),
        ("stages: {a: {foreach: 3, do: {cmd: x}}}", "expected a list or a mapping"),
        ("stages: {a: {matrix: {n: 3}, cmd: x}}", "expected a list"),
        ("vars: [{a: {text: again}}]\nstages: {}", "already defined"),
        ("stages: [", "dvc.yaml"),
    ],
)
def test_errors_name_what_is_wrong(tmp_path: Path, graph: str, words: str) -> None:
    with pytest.raises(DvcProjectError, match=words):
        DvcProject(graphs.make(tmp_path, graph))


def test_a_cycle_is_named(tmp_path: Path) -> None:
    graph = "stages: {a: {cmd: x, deps: [b], outs: [a]}, b: {cmd: x, deps: [a], outs: [b]}}"
    with pytest.raises(DvcProjectError, match="cycle: .*a.*b"):
        DvcProject(graphs.make(tmp_path, graph)).order()


def test_a_missing_file_of_parameters(tmp_path: Path) -> None:
    with pytest.raises(DvcProjectError, match="cannot be read"):
        read_data(tmp_path / "absent.yaml")


def test_ignored_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("x")
    before = Workspace(tmp_path).md5("data")
    (tmp_path / "data" / ".gitignore").write_text("/x")
    assert Workspace(tmp_path).md5("data") != before
    (tmp_path / ".dvcignore").write_text(".gitignore\n")
    assert Workspace(tmp_path).md5("data") == before
    assert Workspace(tmp_path).md5("absent") is None


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="no git checkout")
def test_git_ignores_every_out_that_dvc_keeps() -> None:
    """Else DVC writes the entry during the first run, and git shows a changed file."""
    kept = {out.path for stage in DvcProject(REPOSITORY).stages.values() for out in stage.outs if out.cache}
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    ignored = subprocess.run(command, cwd=REPOSITORY, input="\n".join(kept), capture_output=True, text=True).stdout
    assert kept - set(ignored.splitlines()) == set()
