"""The code location of this project: complete, light, valid."""

import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from paco_pipelines.defs.checks import as_result
from paco_pipelines.defs.graph import PROJECT
from pipelines.definitions import defs
from tests.support.definitions import outline


def test_the_definitions_are_those_of_the_snapshot(snapshot: SnapshotAssertion) -> None:
    """`pytest --snapshot-update` writes a change down; its diff is what the change does to the graph."""
    assert outline(defs.get_repository_def()) == snapshot(extension_class=JSONSnapshotExtension)


def test_edges_are_those_of_dvc() -> None:
    graph = defs.get_repository_def().asset_graph
    for name in PROJECT.assets:
        upstream = set(PROJECT.group_upstream[name]) - {"code"}  # bookkeeping, which is the assets' code version
        assert {key.to_user_string() for key in graph.get(dg.AssetKey(name)).parent_keys} == upstream


@pytest.mark.slow
def test_loading_imports_no_framework() -> None:
    code = (
        "import sys, paco_core.data.checks, pipelines.definitions as d; d.defs.get_repository_def()\n"
        "print(sorted({'torch', 'mlflow', 'dvc', 'diffusers', 'transformers'} & set(sys.modules)))"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


def test_reports_of_the_library_as_results() -> None:
    from paco_core.io.check_report import CheckReport

    good = CheckReport("good", True, "ERROR", "fine", {"rows": 3})
    weak = CheckReport("weak", False, "WARN", "so so", {"gain": float("nan")})
    single = as_result(good)
    assert single.passed and single.metadata["rows"].value == 3
    combined = as_result(good, weak)
    assert not combined.passed and combined.severity is dg.AssetCheckSeverity.WARN
    assert combined.description == "so so" and combined.metadata["weak/gain"].value == "nan"
    assert as_result(weak, CheckReport("bad", False, "ERROR", "no")).severity is dg.AssetCheckSeverity.ERROR


def test_in_the_run_of_a_partition_its_check_looks_at_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a fresh project the first shard would fail for want of the second."""
    from paco_core.data import checks as library
    from paco_core.io.check_report import CheckReport
    from paco_pipelines.defs.checks import stage_checks

    calls: list[tuple[object, ...]] = []

    def passes(_data: Path, *shards: object) -> CheckReport:
        calls.append(shards)
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
    assert calls == [(1, [0, 1]), ()]
