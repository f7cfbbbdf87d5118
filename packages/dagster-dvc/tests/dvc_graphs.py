"""Small DVC projects for tests, run by the real DVC in folders of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from dagster_dvc import (
    DagsterDvcTranslator,
    DvcProject,
    DvcResource,
    build_dvc_assets,
    build_dvc_lock_sensor,
    build_in_sync_checks,
)

CHAIN = """
stages:
  a:
    desc: The start
    cmd: python put.py a.out ${a.text}
    deps: [put.py]
    params: [a]
    outs: [a.out]
    meta: {dagster: {group: first, kinds: [json], owners: ["team:data"], pool: gpu, tags: {tier: gold}}}
  b:
    cmd: python put.py b.out a.out
    deps: [put.py, a.out]
    outs: [b.out]
  c:
    cmd: python put.py c.out b.out
    deps: [put.py, b.out]
    outs: [c.out]
"""
PUT = """
import sys, pathlib
target, *sources = sys.argv[1:]
def text(source):
    path = pathlib.Path(source)
    if path.is_dir():
        return "".join(p.read_text() for p in sorted(path.rglob("*")) if p.is_file())
    return path.read_text() if path.exists() else source
made = "".join(map(text, sources))
pathlib.Path(target).parent.mkdir(parents=True, exist_ok=True)
pathlib.Path(target).write_text(made)
"""
ITEMS = """
vars:
  - more.yaml
  - suffix: txt
stages:
  source:
    cmd: python put.py raw/x.${suffix} ${start} && python put.py raw/y.${suffix} y
    deps: [put.py]
    outs: [raw]
  shard:
    matrix:
      shard: ${shards}
    cmd: python put.py shards/${item.shard}/f raw/x.txt ${item.shard}
    deps: [raw/x.txt]
    params:
      - "sizes.${item.shard}"
    outs: ["shards/${item.shard}"]
  train:
    matrix:
      model: [small, {name: big, depth: 3}]
      seed: [0, 1]
    cmd: python put.py models/${key} shards
    deps: [shards]
    params: [more.yaml: [rate]]
    outs: ["models/${key}"]
  each:
    foreach: ${cities}
    do:
      cmd: python ../put.py ${key}.txt ${item.name}
      wdir: places
      deps: [../put.py]
      params: [start]
      outs: ["${key}.txt": {cache: false}]
  listed:
    foreach: [one, two]
    do:
      cmd: python put.py listed/${item} places/rome.txt
      deps: [places/rome.txt]
      outs: ["listed/${item}"]
  kept:
    cmd:
      - python put.py kept raw/y.txt
      - python put.py figures.json "{}"
      - python put.py curve.csv x,y
    deps: [raw/y.txt]
    outs: [kept: {persist: true}]
    metrics: [figures.json: {cache: false}]
    plots: [curve.csv: {x: x, y: y}]
  ice:
    frozen: true
    cmd: python put.py ice kept
    deps: [kept]
    outs: [ice]
  clock:
    always_changed: true
    cmd: python put.py clock ice figures.json
    deps: [ice, figures.json]
    outs: [clock]
"""
ITEMS_PARAMS = """
start: 1
shards: [a, 2, true]
sizes: {a: 1e-3, "2": 2, "true": on}
cities:
  rome: {name: Rome}
  oslo: {name: Oslo}
"""
FAN = """
vars: [grid.yaml]
stages:
  tile:
    matrix: {row: "${rows}", column: "${columns}"}
    cmd: python put.py tiles/${item.row}/${item.column} ${item.row} ${item.column} ${ink}
    params: [grid.yaml: [ink]]
    outs: ["tiles/${item.row}/${item.column}"]
  polish:
    matrix: {row: "${rows}", column: "${columns}"}
    cmd: python put.py shiny/${item.row}${item.column} tiles/${item.row}/${item.column}
    deps: ["tiles/${item.row}/${item.column}"]
    outs: ["shiny/${item.row}${item.column}": {cache: false}]
  join:
    matrix: {row: "${rows}"}
    cmd: python put.py strips/${item.row} tiles/${item.row}
    deps: ["tiles/${item.row}"]
    outs: ["strips/${item.row}"]
  corner:
    foreach: {top: "${rows[0]}"}
    do:
      cmd: python put.py ${key} strips/${item}
      deps: ["strips/${item}", shiny]
      outs: ["${key}"]
"""


def make(root: Path, graph: str, params: str = "a: {text: hello}\n", **files: str) -> Path:
    """A DVC project in ``root`` (git or not); files by name, ``__`` for a dot."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "dvc.yaml").write_text(graph)
    (root / "params.yaml").write_text(params)
    (root / "put.py").write_text(PUT)
    for name, text in files.items():
        (root / name.replace("__", ".")).write_text(text)
    (root / ".dvc" / "tmp").mkdir(parents=True)
    (root / ".dvc" / "config").write_text(
        "[core]\n    no_scm = True\n    analytics = false\n    check_update = false\n"
    )
    return root


def make_items(root: Path) -> Path:
    project = make(root, ITEMS, ITEMS_PARAMS, more__yaml="rate: 0.5\nother: 1\n")
    (project / "places").mkdir()
    # A parameter file is looked for beside the stage: in its working folder.
    (project / "places" / "params.yaml").write_text("start: 2\n")
    # DVC runs no frozen stage: it takes the out that lies there.
    (project / "ice").write_text("cold")
    return project


def make_chain(root: Path) -> Path:
    return make(root, CHAIN)


def make_fan(root: Path) -> Path:
    """Two dimensions read by two, by one, and by a folder that gathers them."""
    return make(root, FAN, "a: 1\n", grid__yaml="rows: [a, b]\ncolumns: [1, 2]\nink: blue\n")


FOLDER = str(Path(__file__).parent)  # on the path of processes that tests start
#: An instance whose daemon looks at its runs each second.
MONITORED: dict[str, Any] = {
    "run_launcher": {"module": "dagster_dvc.launcher", "class": "LocalRunLauncher"},
    "run_monitoring": {"enabled": True, "poll_interval_seconds": 1, "free_slots_after_run_end_seconds": 1},
    "run_retries": {"enabled": True, "max_retries": 2, "retry_on_asset_or_op_failure": False},
    "concurrency": {"pools": {"granularity": "op", "default_limit": 1}},
    "telemetry": {"enabled": False},
}

#: Name -> what makes a project of this shape, what is edited in it, and which stage is run then.
SHAPES: dict[str, tuple[Callable[[Path], Path], tuple[str, str, str], str]] = {
    "chain": (make_chain, ("params.yaml", "hello", "bye"), "a"),
    "items": (make_items, ("more.yaml", "0.5", "0.6"), "train@small-1"),
    "fan": (make_fan, ("grid.yaml", "blue", "red"), "tile@a-2"),
}


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.02)


def dvc(root: Path, *arguments: str, check: bool = True) -> str:
    """Run the real DVC; its output."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    completed = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=root, capture_output=True, text=True, env={**os.environ, "PATH": path, "COLUMNS": "200"},
    )  # fmt: skip
    assert not check or completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def definitions(root: Path, translator: DagsterDvcTranslator | None = None) -> dg.Definitions:
    """A code location with all assets of a project."""
    chosen = translator or DagsterDvcTranslator()
    project = DvcProject(root, chosen.get_derived)
    return dg.Definitions(
        assets=build_dvc_assets(project, translator=chosen),
        asset_checks=build_in_sync_checks(project, translator=chosen),
        resources={"dvc": DvcResource(project_dir=str(root), grace_seconds=3)},
        sensors=[build_dvc_lock_sensor(project, translator=chosen)],
    )


def monitored_instance(home: Path) -> dg.DagsterInstance:
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text(yaml.safe_dump(MONITORED))
    return dg.DagsterInstance.from_config(str(home))


def stale(defs: dg.Definitions, instance: dg.DagsterInstance, project: DvcProject) -> set[str]:
    """The stages whose assets Dagster's own resolver calls missing or stale."""
    from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
    from dagster._core.loader import LoadingContextForTest

    resolver = CachingStaleStatusResolver(
        instance, defs.get_repository_def().asset_graph, LoadingContextForTest(instance)
    )
    translator = DagsterDvcTranslator()
    return {
        stage.name
        for stage in project.stages.values()
        if stage.group in project.assets
        and resolver.get_status(translator.get_asset_key(project.groups[stage.group]), translator.partition_key(stage))
        is not StaleStatus.FRESH
    }


def tick(
    root: Path, instance: dg.DagsterInstance, translator: DagsterDvcTranslator | None = None
) -> tuple[dg.Definitions, str]:
    """One tick of the sensor; the definitions and what it said."""
    defs = definitions(root, translator)
    repository = defs.get_repository_def()
    context = dg.build_sensor_context(instance=instance, repository_def=repository)
    result = repository.get_sensor_def("dvc_lock").evaluate_tick(context)
    assert result.run_requests == []
    return defs, result.skip_message or ""


def agree(root: Path, *instances: dg.DagsterInstance) -> set[str]:
    """After a tick each instance knows `dvc status`'s changed stages; a second tick is silent."""
    project = DvcProject(root)
    expected = changed(root, project)
    for instance in instances:
        know(tick(root, instance)[0], instance, project, expected)
        assert tick(root, instance)[1] == "Dagster and dvc.lock agree"
    return expected


def know(defs: dg.Definitions, instance: dg.DagsterInstance, project: DvcProject, expected: Collection[str]) -> None:
    """The check ``in_sync_with_dvc`` fails for these stages that ran, and Dagster marks them stale or missing.

    Where Dagster has one version for several things, the check alone knows which changed: partitions, and stages that
    read one of several outs.
    """
    groups = {project.stages[name].group for name in expected}
    coarse = {name for name, stage in project.stages.items() if stage.coordinates or _reads_of_several(project, name)}
    assert stale(defs, instance, project) - coarse == set(expected) - coarse
    assert out_of_sync(defs, instance) == {g for g in groups if is_known(instance, g)}


def _reads_of_several(project: DvcProject, name: str) -> bool:
    return any(len(project.stages[up].outs) > 1 or project.stages[up].coordinates for up in project.upstream[name])


def is_known(instance: dg.DagsterInstance, group: str) -> bool:
    return instance.get_latest_materialization_event(dg.AssetKey(group.replace("-", "_"))) is not None


def out_of_sync(defs: dg.Definitions, instance: dg.DagsterInstance) -> set[str]:
    """The assets whose check `in_sync_with_dvc` failed last."""
    keys = [key for key in defs.get_repository_def().asset_graph.asset_check_keys if key.name == "in_sync_with_dvc"]
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    evaluations = {key: record.event.asset_check_evaluation for key, record in records.items() if record.event}
    return {key.asset_key.path[-1] for key, evaluation in evaluations.items() if evaluation and not evaluation.passed}


def changed(root: Path, project: DvcProject) -> set[str]:
    """The stages that the real `dvc status` calls changed."""
    import json

    report = json.loads(dvc(root, "status", "--json") or "{}")
    return {name for name, stage in project.stages.items() if name in report and stage.group in project.assets}
