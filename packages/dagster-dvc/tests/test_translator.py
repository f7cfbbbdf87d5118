"""Assets from stages: keys, specs, partitions, mappings, and what the decorator adds."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

import dvc_graphs as graphs
from dagster_dvc import DagsterDvcTranslator, DvcProject, DvcProjectError, build_dvc_assets


@pytest.fixture
def chain(tmp_path: Path) -> DvcProject:
    return DvcProject(graphs.make(tmp_path, graphs.CHAIN))


@pytest.fixture
def items(tmp_path: Path) -> DvcProject:
    return DvcProject(graphs.make_items(tmp_path))


def _spec(project: DvcProject, name: str) -> dg.AssetSpec:
    return DagsterDvcTranslator().get_asset_spec(project, project.groups[name])


def test_settings_come_from_meta_and_description_from_desc(chain: DvcProject) -> None:
    spec = _spec(chain, "a")
    assert (spec.group_name, spec.kinds, list(spec.owners)) == ("first", {"json", "dvc"}, ["team:data"])
    assert spec.tags["tier"] == "gold" and spec.description == "The start"
    assert spec.code_version == chain.code_version("a")
    (asset, *_) = build_dvc_assets(chain)
    assert asset.op.pool == "gpu"


def test_unknown_setting_is_refused(tmp_path: Path) -> None:
    graph = "stages: {a: {cmd: x, meta: {dagster: {gruop: data}}}}"
    with pytest.raises(DvcProjectError, match="gruop"):
        build_dvc_assets(DvcProject(graphs.make(tmp_path, graph)))


def test_items_become_partitions(items: DvcProject) -> None:
    translator = DagsterDvcTranslator()
    shards = translator.get_partitions_def(items.groups["shard"])
    assert shards is not None and shards.get_partition_keys() == ["a", "2", "True"]
    trainings = translator.get_partitions_def(items.groups["train"])
    assert isinstance(trainings, dg.MultiPartitionsDefinition)
    assert set(trainings.get_partition_keys()) == {"small|0", "small|1", "model1|0", "model1|1"}
    assert translator.get_partitions_def(items.groups["kept"]) is None


def test_three_dimensions_are_one_flat_one(tmp_path: Path) -> None:
    graph = 'stages: {a: {matrix: {x: [1, 2], y: [3], z: [4, 5]}, cmd: "run ${key}"}}'
    project = DvcProject(graphs.make(tmp_path, graph))
    partitions = DagsterDvcTranslator().get_partitions_def(project.groups["a"])
    assert partitions is not None and partitions.get_partition_keys() == ["1-3-4", "1-3-5", "2-3-4", "2-3-5"]


def test_mappings_follow_the_edges(items: DvcProject) -> None:
    def mapping(child: str, parent: str) -> dg.PartitionMapping | None:
        deps = {dep.asset_key.to_user_string(): dep.partition_mapping for dep in _spec(items, child).deps}
        return deps[parent]

    assert mapping("shard", "source") is None
    assert isinstance(mapping("train", "shard"), dg.AllPartitionMapping)
    assert mapping("listed", "each") == dg.StaticPartitionMapping({"rome": {"one", "two"}})


def test_same_items_map_one_to_one(tmp_path: Path) -> None:
    graph = """
stages:
  a: {matrix: {n: [x, y]}, cmd: run, outs: ["a/${item.n}"]}
  b: {matrix: {n: [x, y]}, cmd: run, deps: ["a/${item.n}"], outs: ["b/${item.n}"]}
  c: {cmd: run, deps: [b/y]}
"""
    project = DvcProject(graphs.make(tmp_path, graph))
    (dep,) = _spec(project, "b").deps
    assert isinstance(dep.partition_mapping, dg.IdentityPartitionMapping)
    (dep,) = _spec(project, "c").deps
    assert dep.partition_mapping == dg.SpecificPartitionsPartitionMapping(["y"])


def test_translator_can_be_overridden(chain: DvcProject) -> None:
    class Prefixed(DagsterDvcTranslator):
        def get_asset_key(self, group):  # type: ignore[no-untyped-def]
            return super().get_asset_key(group).with_prefix("mine")

    assets = build_dvc_assets(chain, translator=Prefixed(), exclude=["c"])
    assert {asset.key for asset in assets} == {dg.AssetKey(["mine", "a"]), dg.AssetKey(["mine", "b"])}
    assert assets[1].asset_deps[dg.AssetKey(["mine", "b"])] == {dg.AssetKey(["mine", "a"])}


def test_the_library_loads_neither_dvc_nor_torch() -> None:
    code = "import sys, dagster_dvc; print(sorted({'dvc', 'torch', 'paco_core'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
