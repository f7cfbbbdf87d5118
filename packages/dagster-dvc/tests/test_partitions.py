"""Runs that hold assets with and without partitions."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

import dvc_graphs as graphs
from dagster_dvc import DvcProject, DvcProjectError, build_whole_graph_job

pytestmark = pytest.mark.slow

MIXED = """
stages:
  start: {cmd: python put.py start s, deps: [put.py], outs: [start]}
  shard:
    matrix: {n: ["0", "1"]}
    cmd: python put.py shards/${item.n} start
    deps: [start]
    outs: ["shards/${item.n}"]
  gather: {cmd: python put.py gathered shards, deps: [shards], outs: [gathered]}
  city:
    matrix: {name: [rome, oslo], size: [1, 2]}
    cmd: python put.py cities/${item.name}-${item.size} gathered
    deps: [gathered]
    outs: ["cities/${item.name}-${item.size}"]
  end: {cmd: python put.py end cities, deps: [cities], outs: [end]}
"""


def outcomes(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """What each event of a run says, by asset and partition."""
    events = [event.materialization for event in result.all_events if event.is_step_materialization]
    keys = ["/".join([*event.asset_key.path, *([event.partition] if event.partition else [])]) for event in events]
    return {key: str(event.metadata["dvc/outcome"].value) for key, event in zip(keys, events, strict=True)}


def whole_graph(root: Path) -> dg.JobDefinition:
    job = build_whole_graph_job(DvcProject(root))
    return dg.Definitions.merge(graphs.definitions(root), dg.Definitions(jobs=[job])).resolve_job_def(job.name)


def test_one_job_makes_the_whole_graph(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, MIXED)
    job = whole_graph(root)
    with dg.DagsterInstance.ephemeral() as instance:
        first = outcomes(job.execute_in_process(instance=instance))
        cities = {"rome|1", "rome|2", "oslo|1", "oslo|2"}
        parts = {"shard/0", "shard/1", *(f"city/{name}" for name in cities)}
        assert first == dict.fromkeys({"start", "shard", "gather", "city", "end", *parts}, "executed")
        assert instance.get_materialized_partitions(dg.AssetKey("city")) == cities
        # The marks agree with DVC's before the mirror has looked, too.
        assert graphs.stale(graphs.definitions(root), instance, DvcProject(root)) == set()
        assert graphs.agree(root, instance) == set()
        (root / "shards/1").unlink()
        second = outcomes(job.execute_in_process(instance=instance))
        assert second == dict.fromkeys(first, "unchanged") and (root / "shards/1").is_file()


def test_partitions_that_read_partitions_are_named(tmp_path: Path) -> None:
    project = DvcProject(graphs.make_fan(tmp_path))
    with pytest.raises(DvcProjectError, match=r"dvc.yaml: items of polish read items of tile; .*`dvc repro`"):
        build_whole_graph_job(project)


def test_what_was_made_is_kept_when_a_later_partition_fails(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, MIXED)
    (root / "put.py").write_text(graphs.PUT + "assert target != 'shards/1', 'no room'\n")
    with dg.DagsterInstance.ephemeral() as instance:
        result = whole_graph(root).execute_in_process(instance=instance, raise_on_error=False)
        assert not result.success and outcomes(result) == {"start": "executed"}
        graphs.tick(root, instance)
        assert instance.get_materialized_partitions(dg.AssetKey("shard")) == {"0"}
