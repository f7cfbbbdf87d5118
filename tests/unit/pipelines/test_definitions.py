"""The code location of this project: complete, light, valid."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph

from dagster_dvc import DvcProject
from dagster_dvc.checks import in_sync
from pipelines.definitions import defs
from pipelines.defs.checks import as_result
from pipelines.defs.graph import PROJECT
from tests.support import dvc_graphs as graphs

ROOM_OF_GROUP = {"data", "reward", "serving", "policies", "benchmarks", "operations"}
WATCHED = {"nightly/reward", "nightly/policies", "audit/reproducibility"}
OTHERS = {"reward_endpoint", "champion/reward", "champion/policies", *WATCHED}


@pytest.fixture(scope="module")
def graph() -> BaseAssetGraph:
    return defs.get_repository_def().asset_graph


def test_every_stage_is_an_asset_and_few_others_are(graph: BaseAssetGraph) -> None:
    keys = {key.to_user_string() for key in graph.get_all_asset_keys()}
    assert keys == {*PROJECT.assets, *OTHERS}
    assert all(not graph.get(key).is_external for key in graph.get_all_asset_keys())


def test_every_asset_is_described_owned_and_grouped(graph: BaseAssetGraph) -> None:
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.group_name in ROOM_OF_GROUP, key
        assert node.description and node.owners and node.kinds, key


def test_edges_are_those_of_dvc(graph: BaseAssetGraph) -> None:
    for name in PROJECT.assets:
        upstream = set(PROJECT.group_upstream[name]) - {"code"}  # bookkeeping, which is the assets' code version
        assert {k.to_user_string() for k in graph.get(dg.AssetKey(name)).parent_keys} == upstream


def test_every_asset_has_a_check_and_each_stage_the_one_on_sync(graph: BaseAssetGraph) -> None:
    named = {(key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys}
    assert {(name, "in_sync_with_dvc") for name in PROJECT.assets} <= named
    others = {asset for asset, name in named if name != "in_sync_with_dvc"}
    assert others == {*PROJECT.assets, "reward_endpoint", *WATCHED}


def test_what_spends_is_off_and_what_only_reads_is_on() -> None:
    repository = defs.get_repository_def()
    assert {s.name for s in repository.schedule_defs} == {
        "nightly_reevaluation",
        "weekly_audit",
        "endpoint_health_every_5_minutes",
    }
    assert {s.name for s in repository.sensor_defs} == {"dvc_lock", "champions", "housekeeping", "alert_on_failure"}
    assert all(s.default_status is dg.DefaultScheduleStatus.STOPPED for s in repository.schedule_defs)
    on = {s.name for s in repository.sensor_defs if s.default_status is dg.DefaultSensorStatus.RUNNING}
    assert on == {"dvc_lock", "champions"}


@pytest.mark.slow
def test_loading_imports_no_framework() -> None:
    code = (
        "import sys, pipelines.definitions as d; d.defs.get_repository_def()\n"
        "print(sorted({'torch', 'mlflow', 'dvc', 'diffusers', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.parametrize(
    "command", [["dg", "check", "defs"], ["dagster", "definitions", "validate", "-w", "workspace.yaml"]]
)
def test_both_faces_of_dagster_accept_the_definitions(
    command: list[str], repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    tool = Path(sys.executable).parent / command[0]
    done = subprocess.run([str(tool), *command[1:]], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_reports_of_the_library_as_results() -> None:
    from paco_core.io.check_report import CheckReport

    good = CheckReport("good", True, "ERROR", "fine", {"rows": 3})
    weak = CheckReport("weak", False, "WARN", "so so", {"gain": float("nan")})
    alone = as_result(good)
    assert alone.passed and alone.metadata["rows"].value == 3
    both = as_result(good, weak)
    assert not both.passed and both.severity is dg.AssetCheckSeverity.WARN
    assert both.description == "so so" and both.metadata["weak/gain"].value == "nan"
    assert as_result(weak, CheckReport("bad", False, "ERROR", "no")).severity is dg.AssetCheckSeverity.ERROR


def test_in_the_run_of_a_partition_its_check_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fresh project the first shard would fail for want of the second."""
    from paco_core.data import checks as library
    from paco_core.io.check_report import CheckReport
    from pipelines.defs.checks import stage_checks

    asked: list[tuple[object, ...]] = []

    def passes(_data: Path, *which: object) -> CheckReport:
        asked.append(which)
        return CheckReport("grids_are_complete", True, "ERROR", "fine")

    monkeypatch.setattr(library, "grids_are_complete", passes)
    partitions = dg.StaticPartitionsDefinition(["0", "1"])
    (check,) = [check for check in stage_checks() if {key.name for key in check.check_keys} == {"grids_are_complete"}]
    assets = [dg.asset(name="grids", partitions_def=partitions)(lambda: None), check]
    with dg.DagsterInstance.ephemeral() as instance:
        dg.materialize(assets, partition_key="1", instance=instance)
        job = dg.Definitions(assets=assets[:1], asset_checks=assets[1:]).get_implicit_global_asset_job_def()
        keys = {dg.AssetCheckKey(dg.AssetKey("grids"), "grids_are_complete")}
        job.get_subset(asset_selection=set(), asset_check_selection=keys).execute_in_process(instance=instance)
    assert asked == [(1, [0, 1]), ()]


@pytest.mark.slow
def test_in_sync_says_why_not(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    assert "never ran" in (in_sync(DvcProject(root), "a").description or "")
    graphs.dvc(root, "repro", "-q", "a")
    assert in_sync(DvcProject(root), "a").passed
    (root / "a.out").unlink()
    (root / "params.yaml").write_text("a: {text: other}\n")
    result = in_sync(DvcProject(root), "a")
    assert not result.passed
    assert result.description == "a: command changed; a.out is missing; params.yaml: a changed"


@pytest.mark.slow
def test_what_the_steps_are_forked_from_loads_no_torch() -> None:
    """Each check of the data imported diffusers for a list of prompts: six seconds, seven times a run."""
    code = (
        "import sys, paco_core.data.checks; sys.exit(bool({'torch', 'diffusers', 'transformers'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
