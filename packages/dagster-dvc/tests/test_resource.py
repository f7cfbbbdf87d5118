"""Materialising through the real DVC: outcomes, versions, Pipes, failures, and stops."""

import json
import os
import sys
from pathlib import Path

import dagster as dg
import pytest

import dvc_graphs as graphs
from dagster_dvc import DagsterDvcTranslator, DvcProject, DvcResource, dvc_assets
from dagster_dvc.resource import FAILURE_CHARACTERS

REPORTS = """
import os, pathlib
from dagster_pipes import open_dagster_pipes
pathlib.Path("a.out").write_text("made")
with open_dagster_pipes() as pipes:
    pipes.report_asset_materialization(metadata={"rows": 7})
"""


def _materialise(root: Path, *names: str, instance: dg.DagsterInstance, partition: str | None = None) -> list:
    defs = graphs.definitions(root)
    result = dg.materialize(
        [asset for asset in defs.assets or [] if asset.key.to_user_string() in names],
        resources=defs.resources, instance=instance, partition_key=partition,
    )  # fmt: skip
    return [event.materialization for event in result.get_asset_materialization_events()]


@pytest.mark.slow
def test_dvc_is_started_only_where_a_stage_may_run(tmp_path: Path) -> None:
    """A graph that is up to date took a start of DVC a stage."""
    root = graphs.make(tmp_path, graphs.CHAIN)
    no_dvc = {"dvc": DvcResource(project_dir=str(root), executable=[sys.executable, "-c", "raise SystemExit(9)"])}

    def outcome_of_run(**tags: str) -> str:
        defs = graphs.definitions(root)
        chosen = [asset for asset in defs.assets or [] if asset.key.to_user_string() == "a"]
        result = dg.materialize(chosen, resources=no_dvc, instance=instance, raise_on_error=False, tags=tags)
        if not result.success:
            return "DVC"
        (materialization,) = [event.materialization for event in result.get_asset_materialization_events()]
        return str(materialization.metadata["dvc/outcome"].value)

    with dg.DagsterInstance.ephemeral() as instance:
        assert outcome_of_run() == "DVC", "it never ran"
        _materialise(root, "a", instance=instance)
        assert outcome_of_run() == "unchanged"
        assert outcome_of_run(**{"dvc/force": "true"}) == "DVC"
        noted = root / ".dvc/tmp/rwlock"
        noted.parent.mkdir(parents=True, exist_ok=True)
        noted.write_text(json.dumps({"write": {str(root / "a.out"): {"pid": os.getpid(), "cmd": "dvc repro a"}}}))
        assert outcome_of_run() == "DVC", "a process writes it now"
        noted.write_text("{}")
        (root / "a.out").unlink()
        assert outcome_of_run() == "DVC"
        (root / "a.out").write_text("other")
        assert outcome_of_run() == "DVC"


@pytest.mark.slow
def test_executed_unchanged_restored(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    with dg.DagsterInstance.ephemeral() as instance:
        outcomes, versions, seconds, saved = [], [], [], []
        for text in ("hello", "hello", "bye", "hello"):
            (root / "params.yaml").write_text(f"a: {{text: {text}}}\n")
            (materialization,) = _materialise(root, "a", instance=instance)
            outcomes.append(materialization.metadata["dvc/outcome"].value)
            versions.append(materialization.tags["dagster/data_version"])
            seconds.append(materialization.metadata["dvc/seconds"].value)
            saved.append(
                materialization.metadata["dvc/saved_seconds"].value
                if "dvc/saved_seconds" in materialization.metadata
                else None
            )
            entry = DvcProject(root).lock()["a"]
            assert versions[-1] == entry.outs["a.out"]
            assert materialization.tags["dvc/lock_digest"] == entry.digest
    assert outcomes == ["executed", "unchanged", "executed", "restored"]
    assert versions[0] == versions[1] == versions[3] != versions[2]
    assert (saved[0], saved[2]) == (None, None), "a run saves nothing"
    assert saved[1] == pytest.approx(max(0, seconds[0] - seconds[1]), abs=0.02)
    assert saved[3] == pytest.approx(max(0, seconds[0] - seconds[3]), abs=0.02)
    assert (root / "a.out").read_text() == "hello"


@pytest.mark.slow
def test_the_stage_reports_through_pipes_and_a_partition_is_one_item(tmp_path: Path) -> None:
    graph = """
stages:
  a:
    matrix: {n: [x, y], m: ["1", "2"]}
    cmd: python report.py ${item.n} ${item.m}
    deps: [report.py]
    outs: ["out/${item.m}${item.n}"]
"""
    code = REPORTS.replace(
        'pathlib.Path("a.out").write_text("made")',
        "import sys\nn, m = sys.argv[1:]\n"
        'os.makedirs("out", exist_ok=True)\npathlib.Path(f"out/{m}{n}").write_text("z")',
    )
    root = graphs.make(tmp_path, graph, report__py=code)
    with dg.DagsterInstance.ephemeral() as instance:
        key = dg.MultiPartitionKey({"n": "y", "m": "1"})
        (materialization,) = _materialise(root, "a", instance=instance, partition=key)
    assert materialization.metadata["rows"].value == 7 and materialization.metadata["dvc/outcome"].value == "executed"
    assert materialization.partition == key
    assert sorted(p.name for p in (root / "out").iterdir() if p.name != ".gitignore") == ["1y"]


@pytest.mark.slow
def test_a_version_keeps_what_its_run_said_and_a_cold_instance_asks_the_translator(tmp_path: Path) -> None:
    root = graphs.make(
        tmp_path, "stages: {a: {cmd: python report.py, deps: [report.py], outs: [a.out]}}", report__py=REPORTS
    )

    class SlowTranslator(DagsterDvcTranslator):
        def get_usual_seconds(self, project, stage):  # type: ignore[no-untyped-def]
            return 1000.0

    @dvc_assets(project=DvcProject(root), select=["a"], translator=SlowTranslator())
    def a(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult:
        return dvc.reproduce(context, SlowTranslator()).result()

    def materialize_a(instance: dg.DagsterInstance) -> dg.AssetMaterialization:
        result = dg.materialize([a], resources={"dvc": DvcResource(project_dir=str(root))}, instance=instance)
        (event,) = result.get_asset_materialization_events()
        return event.materialization

    with dg.DagsterInstance.ephemeral() as warm:
        assert materialize_a(warm).metadata["dvc/outcome"].value == "executed"
        second = materialize_a(warm)
        assert (second.metadata["dvc/outcome"].value, second.metadata["rows"].value) == ("unchanged", 7)
        assert second.metadata["dvc/saved_seconds"].value < 1000 - 100, "by the run that Dagster saw"
    with dg.DagsterInstance.ephemeral() as cold:
        second = materialize_a(cold)
        assert "rows" not in second.metadata and second.metadata["dvc/saved_seconds"].value > 900


def failure(root: Path) -> str:
    """Why the step of stage ``a`` failed."""
    defs = graphs.definitions(root)
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            list(defs.assets or [])[:1], resources=defs.resources, instance=instance, raise_on_error=False
        )
    (event,) = [e for e in result.all_events if e.is_step_failure]
    return str(event.step_failure_data.user_failure_data.description)


@pytest.mark.slow
def test_a_failure_shows_the_end_of_stderr_and_a_busy_stage_is_told(tmp_path: Path) -> None:
    bad = "import sys\nsys.stderr.write('é' * 20000 + '\\n')\nsys.exit('the last word')\n"
    root = graphs.make(tmp_path, "stages: {a: {cmd: python bad.py, outs: [a.out]}}", bad__py=bad)
    text = failure(root)
    assert text.startswith("stage a failed") and "the last word" in text and len(text) <= FAILURE_CHARACTERS
    holder = {"pid": os.getpid(), "cmd": "dvc repro a"}
    (root / ".dvc/tmp/rwlock").write_text(json.dumps({"write": {str(root / "a.out"): holder}, "read": {}}))
    text = failure(root)
    assert text.startswith("stage a is busy") and f"PID {os.getpid()}" in text


@pytest.mark.slow
def test_record_takes_what_lies_on_disk(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    (root / "a.out").write_text("made on a cluster")

    @dvc_assets(project=DvcProject(root), select=["a"])
    def a(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult:
        return dvc.record(context).result(where="cluster")

    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([a], resources={"dvc": DvcResource(project_dir=str(root))}, instance=instance)
        (materialization,) = [e.materialization for e in result.get_asset_materialization_events()]
    assert materialization.metadata["where"].value == "cluster"
    assert materialization.tags["dagster/data_version"] == DvcProject(root).lock()["a"].outs["a.out"]
    assert (root / "a.out").read_text() == "made on a cluster"
