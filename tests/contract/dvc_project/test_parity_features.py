"""Small projects, one feature of DVC each: the graph, the status after a run and after edits are DVC's."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import dvc_itself

Files = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """``edits``: files written one after another, each with the stages that are changed then (None: as DVC says)."""

    files: Files
    edits: list[tuple[Files, set[str]]] = field(default_factory=list)
    settings: str = ""
    after_run: set[str] = field(default_factory=set)  # always changed


FLAGS = """
stages:
  a: {cmd: "echo a > a", outs: [a: {cache: false, desc: first}]}
  b: {cmd: "echo b > b", deps: [a], outs: [b: {persist: true, push: false, remote: other, type: model, labels: [x]}]}
  c: {cmd: "echo '{}' > c.json", deps: [b], metrics: [c.json: {cache: false}], meta: {any: [thing]}}
  d: {cmd: "echo x,y > d.csv", deps: [c.json], plots: [d.csv: {x: x, y: y, cache: false}]}
  ice: {cmd: "echo i > ice", frozen: true, deps: [b], outs: [ice]}
  clock: {cmd: "echo k > clock", always_changed: true, deps: [b], outs: [clock]}
  call: {cmd: ["true", "echo called"]}
"""
TOP = """
vars: [{name: raw, where: [a.json]}, "more.yaml:sizes"]
params: [params.yaml]
metrics: ["${where[0]}"]
plots:
  - a.json
  - "${name}": {x: {a.json: n}, y: {a.json: [n, m]}, template: "${name}", title: t}
artifacts:
  "${name}": {path: "${name}.bin", type: "${name}", labels: ["${name}"], meta: {sizes: "${sizes}"}, desc: x}
datasets:
  - {name: d, type: dvc, url: "https://example.com/${name}", path: x.csv}
stages:
  a: {cmd: "echo '{}' > a.json", metrics: [a.json: {cache: false}]}
  b: {cmd: "echo ${sizes.small} ${sizes} > ${name}.bin", deps: ["a.json"], outs: ["${name}.bin"]}
"""
LOOPS = """
vars:
  - cities: {rome: {n: 1, extras: []}, oslo: {n: 2, extras: [x]}}
  - list: [1, 2.5, true, "a b"]
  - deep: [{k: v}, {k: w}]
  - flag: true
stages:
  by_key: {foreach: "${cities}", do: {cmd: "echo ${key} ${item.n} > ${key}", outs: ["${key}"]}}
  by_number: {foreach: "${deep}", do: {cmd: "echo ${item.k} > ${item.k}", outs: ["${item.k}"]}}
  literal: {foreach: ["${flag}", false, x], do: {cmd: "echo ${item} > l-${item}", outs: ["l-${item}"]}}
  inner: {foreach: [p], do: {cmd: "echo ${own} > ${item}", vars: [own: 3], wdir: in, outs: ["${item}"]}}
  grid:
    matrix: {size: [1, "${list[1]}"], of: "${deep}", on: ["${flag}", false]}
    cmd: echo ${key} ${item.size} ${item.of.k} > ${key}
    outs: ["${key}"]
  reader: {cmd: "cat rome > r", deps: [rome, "l-x", "${deep[-1].k}"], outs: [r]}
"""
PARAMS = """
vars: [bare, UP.YML, t.TOML, j.JSON, "p.py:steps,Model"]
stages:
  a: {cmd: "echo ${rate} ${depth} ${toml.x} ${json.x} ${Model.size} ${steps} > a", outs: [a], params: [
      bare: [rate], UP.YML: [depth], t.TOML: [toml.x, toml.none], j.JSON: [json.x], p.py: [Model.size, steps, pair]]}
  b: {cmd: echo b > b, params: [bare: null, UP.YML: [], p.py: ], outs: [b]}
  c: {cmd: echo c > c, params: [sub/more.cfg: [a.0]], wdir: ., outs: [c]}
"""
PYTHON = """
import os
steps: int = 3
pair = (1, 2)
called = os.getcwd()
first = second = 4
late: int
class Model:
    size = 5
    names = {'a': 1}
    def __init__(self):
        self.width = 6
        hidden = 7
"""
SPELLED = """
stages:
  a: {cmd: "mkdir -p o; cat in/x > o/a", wdir: ./sub/, deps: [./in/x, in/], outs: [./o/]}
  b: {cmd: "cat sub/o/a > b", deps: [sub/../sub/o/a, .//top.txt], outs: [./b]}
  c: {cmd: "cat ../b > c", wdir: sub, deps: [../b, ../sub/in], params: [../params.yaml: [p]], outs: [c]}
  d: {cmd: "cat sub/c > d", deps: [./sub/c], params: [./params.yaml: [p]], outs: [d]}
"""
CASES: dict[str, Case] = {
    "flags": Case(
        {"dvc.yaml": FLAGS, "ice": "cold\n"},
        [({"a": "other\n"}, {"a", "b", "clock", "call"}), ({"ice": "melted"}, {"a", "b", "clock", "call", "ice"})],
        settings="['remote \"other\"']\n    url = /nowhere\n",
        after_run={"clock", "call"},
    ),
    "top-level sections": Case(
        {"dvc.yaml": TOP, "more.yaml": "sizes: {small: 1, list: [a, b]}\nother: 1\n", "params.yaml": "p: 1\n"},
        [({"more.yaml": "sizes: {small: 2, list: [a, b]}\n"}, {"b"})],
    ),
    "loops": Case({"dvc.yaml": LOOPS, "in/keep": ""}, [({"rome": "9\n"}, {"by_key@rome", "reader"})]),
    "files of parameters": Case(
        {
            "dvc.yaml": PARAMS, "bare": "rate: 0.1\n", "UP.YML": "depth: 2\n", "t.TOML": "[toml]\nx = 1\nnone = 0\n",
            "j.JSON": '{"json": {"x": [1][0]}}'.replace("[1][0]", "1"), "p.py": PYTHON, "sub/more.cfg": "a: [1, 2]\n",
        },
        [
            ({"j.JSON": '{"json": {"x": 2}}'}, {"a"}),
            ({"p.py": PYTHON.replace("hidden = 7", "hidden = 8").replace("= 5", "=  5")}, {"a"}),
            ({"p.py": PYTHON.replace("width = 6", "width = 7")}, {"a", "b"}),
            ({"sub/more.cfg": "a: [2, 2]\n"}, {"a", "b", "c"}),
        ],
    ),
    "spellings": Case(
        {"dvc.yaml": SPELLED, "sub/in/x": "1\n", "top.txt": "t\n", "params.yaml": "p: 1\n", "sub/params.yaml": "q: 1"},
        [
            ({"dvc.yaml": SPELLED.replace("[./in/x,", "[in/x,")}, {"a", "d"}),
            ({"dvc.yaml": SPELLED.replace("[./b]", "[b]").replace("[./params", "[params")}, {"b"}),
            ({"dvc.yaml": SPELLED, "sub/in/x": "2\n"}, {"a", "c", "d"}),
        ],
        after_run={"d"},  # DVC records ./params.yaml as params.yaml, and does not find it again
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_feature(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    root = dvc_itself.lay_out(tmp_path, case.files, case.settings)
    project = dvc_itself.same_graph(root)
    dvc_itself.reproduce(root)
    lock = project.lock()
    for stage in project.stages.values():
        if stage.name in lock and not stage.frozen:
            assert lock[stage.name].inputs.params == project.params(stage)
    assert dvc_itself.agreed(root) == case.after_run
    for files, expected in case.edits:
        dvc_itself.write(root, files)
        assert dvc_itself.agreed(root) == expected
