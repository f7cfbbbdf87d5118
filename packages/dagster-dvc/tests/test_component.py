"""A DVC project as a component: the real ``dg`` on a project, and components with other attributes."""

# No `from __future__ import annotations`: the component of a test is resolved from its annotations.

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dvc_graphs as graphs
from dagster_dvc import DvcProjectComponent, DvcResource

COMPONENT = "dagster_dvc.DvcProjectComponent"
EXAMPLE = Path(__file__).parents[1] / "example"
PARTS = """
stages:
  second:
    matrix: {n: [x, y]}
    cmd: python put.py second/${item.n} first.out ${item.n}
    deps: [first.out]
    outs: ["second/${item.n}"]
  first: {cmd: python put.py first.out one, outs: [first.out], meta: {dagster: {group: raw}}}
  third: {cmd: python put.py third.out second, deps: [second], outs: [third.out]}
"""


def run_dg(root: Path, *arguments: str) -> str:
    folder = Path(sys.executable).parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DAGSTER")}
    environment |= {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(root)}
    result = subprocess.run(
        [folder / "dg", *arguments], cwd=root, capture_output=True, text=True, env=environment, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def place(defs: Path, name: str, attributes: dict[str, Any], component: str = COMPONENT) -> Path:
    """Write the ``defs.yaml`` of a component, in JSON, which is YAML."""
    (defs / name).mkdir(parents=True)
    (defs / name / "defs.yaml").write_text(json.dumps({"type": component, "attributes": attributes}))
    return defs / name


def load(defs: Path, name: str | None = None) -> dg.Definitions:
    """The definitions of a folder of components, or of one component in it."""
    (defs / "__init__.py").touch()
    spec = importlib.util.spec_from_file_location(f"defs_of_{defs.parent.name}", defs / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tree = dg.ComponentTree(defs_module=module, project_root=defs.parent)
    return tree.build_defs() if name is None else tree.build_defs(defs / name)


def names(defs: dg.Definitions) -> set[str]:
    graph = defs.get_repository_def().asset_graph
    return {key.to_user_string() for key in graph.executable_asset_keys}


@pytest.mark.slow
def test_the_example_is_scaffolded_checked_and_run(tmp_path: Path) -> None:
    root = tmp_path / "example"
    shutil.copytree(EXAMPLE, root, ignore=shutil.ignore_patterns("tmp", "cache", "clean.csv", "*.json", "dvc.lock"))
    written = root / "shop/defs/sales/defs.yaml"
    text = written.read_text()
    shutil.rmtree(written.parent)
    run_dg(root, "scaffold", "defs", COMPONENT, "sales")
    assert "project_dir: ../../.." in written.read_text()
    written.write_text(text)
    run_dg(root, "check", "defs")
    definitions = json.loads(run_dg(root, "list", "defs", "--json"))
    assert {asset["asset_key"]: asset["dependency_keys"] for asset in definitions["assets"]} == {
        "sales/clean": [],
        "sales/summary": ["sales/clean"],
    }
    assert [sensor["name"] for sensor in definitions["sensors"]] == ["dvc_lock_sales"]
    assert len(definitions["asset_checks"]) == 2
    run_dg(root, "launch", "--assets", "*")
    assert json.loads((root / "summary.json").read_text())["total"] == 60


def test_two_components_have_their_own_resource_and_sensor(tmp_path: Path) -> None:
    for name in ("shop", "bank"):
        graphs.make(tmp_path / name, PARTS)
        attributes = {"project_dir": f"../../{name}", "translation": {"key_prefix": name}}
        place(tmp_path / "defs", name, attributes)
    defs = load(tmp_path / "defs")
    repository = defs.get_repository_def()
    assert {"dvc_shop", "dvc_bank"} <= repository.get_top_level_resources().keys()
    assert {sensor.name for sensor in repository.sensor_defs} == {"dvc_lock_shop", "dvc_lock_bank"}
    assert names(defs) == {f"{name}/{stage}" for name in ("shop", "bank") for stage in ("first", "second", "third")}
    assert repository.asset_graph.get(dg.AssetKey(["bank", "third"])).parent_keys == {dg.AssetKey(["bank", "second"])}


def test_a_component_may_name_them_and_select_stages(tmp_path: Path) -> None:
    graphs.make(tmp_path / "shop", PARTS)
    attributes = {"project_dir": "../../../shop", "name": "till", "select": ["fir*", "third"], "in_sync_checks": False}
    place(tmp_path / "defs/retail", "sales", attributes)
    defs = load(tmp_path / "defs", "retail/sales")
    assert names(defs) == {"first", "third"} and not defs.get_repository_def().asset_graph.asset_check_keys
    assert [sensor.name for sensor in defs.sensors or []] == ["dvc_lock_till"] and set(defs.resources) == {"dvc_till"}
    place(tmp_path / "defs", "other", {"project_dir": "../../shop", "exclude": ["third"], "sensor": False})
    other = load(tmp_path / "defs", "other")
    assert names(other) == {"first", "second"} and not other.sensors


def assets_definitions(defs: dg.Definitions) -> list[dg.AssetsDefinition]:
    return [asset for asset in defs.assets or [] if isinstance(asset, dg.AssetsDefinition)]


def test_op_and_translation_reach_dagster(tmp_path: Path) -> None:
    graphs.make(tmp_path / "shop", PARTS)
    translation = {"metadata": {"declared_as": "{{ stage.name }}"}, "group_name": "{{ spec.group_name or 'rest' }}"}
    attributes = {
        "project_dir": "../../shop",
        "op": {"tags": {"team": "data"}, "pool": "till"},
        "translation": {"key": "shop/{{ stage.name }}_table", **translation},
    }
    place(tmp_path / "defs", "sales", attributes)
    defs = load(tmp_path / "defs", "sales")
    assets = assets_definitions(defs)
    specs = {spec.key.to_user_string(): spec for asset in assets for spec in asset.specs}
    third = specs["shop/third_table"]
    assert [dep.asset_key.to_user_string() for dep in third.deps] == ["shop/second_table"]
    assert third.metadata["declared_as"] == "third" and third.group_name == "rest"
    assert specs["shop/first_table"].group_name == "raw"
    ops = [asset.op for asset in assets]
    assert len(ops) == 3 and {op.pool for op in ops} == {"till"} and {op.tags["team"] for op in ops} == {"data"}


class Reporting(DvcProjectComponent):
    """Does more than ``dvc repro``, with a resource of its own."""

    def build_resource(self, project: Any) -> DvcResource:
        return DvcResource(project_dir=str(project.root), grace_seconds=1)

    def execute(self, context: dg.AssetExecutionContext, dvc: DvcResource) -> Iterator[Any]:
        for result in super().execute(context, dvc):
            yield result._replace(metadata={**result.metadata, "grace": dvc.grace_seconds})


@pytest.mark.slow
def test_one_op_makes_a_subset_and_execute_can_be_overridden(tmp_path: Path) -> None:
    root = graphs.make(tmp_path / "shop", PARTS)
    attributes = {"project_dir": "../../shop", "op": {"name": "shop"}}
    place(tmp_path / "defs", "sales", attributes, f"{__name__}.Reporting")
    defs = load(tmp_path / "defs", "sales")
    (assets,) = assets_definitions(defs)
    assert assets.op.name == "shop" and assets.can_subset and len(assets.keys) == 3
    job = defs.resolve_implicit_global_asset_job_def()

    def materialize(instance: dg.DagsterInstance, *chosen: str, **options: Any) -> dg.ExecuteInProcessResult:
        subset = job.get_subset(asset_selection={dg.AssetKey(name) for name in chosen})
        return subset.execute_in_process(instance=instance, **options)

    def events(result: dg.ExecuteInProcessResult) -> list[tuple[str, str | None]]:
        materializations = [event.materialization for event in result.get_asset_materialization_events()]
        assert all(materialization.metadata["dvc/outcome"].value == "executed" for materialization in materializations)
        assert all(materialization.metadata["grace"].value == 1 for materialization in materializations)
        return [
            (materialization.asset_key.to_user_string(), materialization.partition)
            for materialization in materializations
        ]

    with dg.DagsterInstance.ephemeral() as instance:
        result = materialize(instance, "first", "second", partition_key="y")
        assert events(result) == [("first", None), ("second", "y")], "producers first"
        assert not (root / "third.out").exists() and not (root / "second/x").exists()
        assert events(materialize(instance, "second", partition_key="x")) == [("second", "x")]
        assert events(materialize(instance, "third")) == [("third", None)]
        result = materialize(instance, "first", "second", raise_on_error=False)
        (failure,) = [event for event in result.all_events if event.is_step_failure]
        words = failure.step_failure_data.user_failure_data
        assert words is not None and "start the run with a partition" in str(words.description)
    assert (root / "third.out").read_text() == "onexoney"
