"""Work that must not grow faster than the project: each file is read once, and no path is compared with all others."""

from __future__ import annotations

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import dvc_graphs as graphs
from dvc_project import lockfile, templating
from dvc_project import project as reading
from dvc_project.paths import Overlaps, overlap
from dvc_project.project import DvcProject
from dvc_project.state import ProjectState
from dvc_project.yaml import parse_yaml

SHARDS = """
stages:
  shard:
    matrix:
      n: ${shards}
    cmd: python put.py shards/${item.n} ${rate}
    deps: [put.py]
    params: [rate]
    outs: ["shards/${item.n}"]
  gather:
    cmd: python put.py gathered shards
    deps: [shards, put.py]
    outs: [gathered]
"""


def test_overlaps_are_those_of_a_comparison_with_all() -> None:
    parts = ("a", "ab", "b")
    paths = [*parts, *("/".join(two) for two in product(parts, parts)), "a/b/ab", "../a", "/a/b", "s3://a/b", "a"]
    index = Overlaps((path, number) for number, path in enumerate(paths))
    for asked in product(paths, paths):
        expected = [number for number, path in enumerate(paths) if any(overlap(path, one) for one in asked)]
        assert index.of(asked) == expected


def test_each_file_is_read_once_for_all_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = graphs.make(tmp_path, SHARDS, f"rate: 1\nshards: {list(range(40))}\n")
    reads: Counter[str] = Counter()
    for module in (reading, templating, lockfile):

        def counted(path: Path, *rest: Any, read: Any = module.read_data) -> Any:  # type: ignore[attr-defined]
            reads[path.name] += 1
            return read(path, *rest)

        monkeypatch.setattr(module, "read_data", counted)
    project = DvcProject(root)
    assert len(ProjectState(project).all()) == 41
    assert len(project.upstream["gather"]) == 40 and project.upstream["shard@7"] == ()
    assert reads == {"dvc.yaml": 1, "params.yaml": 2}, "its variables, and the parameters of its stages"


def test_a_text_that_was_parsed_before_is_another_tree() -> None:
    first = parse_yaml("a: {b: [1]}")
    first["a"]["b"].append(2)
    assert parse_yaml("a: {b: [1]}") == {"a": {"b": [1]}}
