"""Entries that read each other through other items."""

from __future__ import annotations

from pathlib import Path

from dvc_project.project import DvcProject

GRAPH = """
stages:
  base: {cmd: b, outs: [r0/policy]}
  paint:
    foreach: {1: {after: r0}, 2: {after: r1}}
    do: {cmd: p, deps: ["${item.after}/policy"], outs: ["r${key}/grids"]}
  judge:
    foreach: {1: {}, 2: {}}
    do: {cmd: j, deps: ["r${key}/grids"], outs: ["r${key}/judge"]}
  policy:
    foreach: {1: {after: r0}, 2: {after: r1}}
    do: {cmd: t, deps: ["r${key}/judge", "${item.after}/policy"], outs: ["r${key}/policy"]}
  nothing:
    foreach: {}
    do: {cmd: n, outs: [none]}
"""


def test_the_edge_between_other_items_closes_the_circle_and_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text(GRAPH)
    project = DvcProject(tmp_path)
    assert project.group_upstream["paint"] == ("base", "policy")
    assert project.forward == {
        "base": (),
        "paint": ("base",),
        "judge": ("paint",),
        "policy": ("base", "judge"),
        "nothing": (),
    }
    assert [s.name for s in project.order() if s.item == "2"] == ["paint@2", "judge@2", "policy@2"]
    assert project.assets == ["base", "paint", "judge", "policy"], "no item, no asset"


def test_a_graph_without_circles_keeps_every_edge(repository: Path) -> None:
    project = DvcProject(repository)
    assert project.forward == project.group_upstream
