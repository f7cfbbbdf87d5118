"""A blocking check holds back the stages that read what it refused, in later runs too: a backfill is several."""

# No `from __future__ import annotations`: Dagster reads the annotations of assets and checks.

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import dvc_graphs as graphs
from dagster_dvc import DvcProject, DvcResource, build_dvc_assets

pytestmark = pytest.mark.slow

GRAPH = """
stages:
  a:
    matrix: {n: [x, y]}
    cmd: "true"
    outs: ["out/${item.n}"]
  b:
    cmd: "true"
    deps: [out/x]
    outs: [b.out]
"""


def test_a_refused_partition_holds_its_reader_back_until_it_passes(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, GRAPH)
    sound: set[str] = set()

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["x", "y"]))
    def a() -> None:
        """Stands for the stage: what is of interest is how its check went."""

    @dg.asset_check(asset=a, blocking=True)
    def is_sound(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        items = {context.partition_key} if context.has_partition_key else {"x", "y"}
        return dg.AssetCheckResult(passed=items <= sound, description=f"asked of {sorted(items)}")

    defs = dg.Definitions(
        assets=[a, *build_dvc_assets(DvcProject(root), exclude=["a"])],
        asset_checks=[is_sound],
        resources={"dvc": DvcResource(project_dir=str(root), executable=["false"])},  # as a DVC that fails
    )
    job = defs.get_implicit_global_asset_job_def()
    checks, reader = {dg.AssetCheckKey(a.key, "is_sound")}, dg.AssetKey("b")

    def run(assets: set[dg.AssetKey], check_keys: set[dg.AssetCheckKey], **options: Any) -> dg.ExecuteInProcessResult:
        chosen = job.get_subset(asset_selection=assets, asset_check_selection=check_keys)
        return chosen.execute_in_process(instance=instance, raise_on_error=False, **options)

    def blocking_reason(**tags: str) -> str:
        """Why the reader is held back; nothing where DVC was asked for it."""
        result = run({reader}, set(), tags=tags)
        (failure,) = [e for e in result.all_events if e.event_type is dg.DagsterEventType.STEP_FAILURE]
        failure_data = failure.step_failure_data.user_failure_data
        assert failure_data is not None and failure_data.description is not None
        return "" if "dvc ended with 1" in failure_data.description else failure_data.description

    with dg.DagsterInstance.ephemeral() as instance:
        assert not run({a.key}, checks, partition_key="x").success
        why = blocking_reason()
        assert "stage b is held back" in why and "a@x: is_sound failed in run" in why and "asked of ['x']" in why
        assert not blocking_reason(**{"dvc/despite_checks": "true"})
        sound.add("y")
        assert run({a.key}, checks, partition_key="y").success
        assert blocking_reason(), "a pass of y says nothing of x"
        sound.add("x")
        assert run(set(), checks).success and not blocking_reason(), "the check alone, asked again"
        sound.discard("y")
        assert not run({a.key}, checks, partition_key="y").success
        assert not blocking_reason(), "y was refused, but is not read"
