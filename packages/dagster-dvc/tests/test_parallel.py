"""Eight partitions at once, as a backfill starts them: nothing is lost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest

import dvc_graphs as graphs
from dagster_dvc import DvcProject

SHARDS = [str(n) for n in range(8)]
GRAPH = """
stages:
  source:
    cmd: python put.py source.out ${start}
    outs: [source.out]
  shard:
    matrix: {n: ["0", "1", "2", "3", "4", "5", "6", "7"]}
    cmd: python put.py shards/${item.n}/f source.out ${item.n} && python put.py figures/${item.n} ${item.n}
    deps: [put.py, source.out]
    outs: ["shards/${item.n}"]
    metrics: ["figures/${item.n}": {cache: false}]
"""


@pytest.mark.slow
def test_eight_partitions_at_once(tmp_path: Path) -> None:
    root = graphs.make(tmp_path / "project", GRAPH, "start: 1\n")
    graphs.dvc(root, "repro", "-q", "source")
    defs = graphs.definitions(root)
    (asset,) = [a for a in defs.assets or [] if a.key == dg.AssetKey("shard")]
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:

        def run(key: str) -> bool:
            result = dg.materialize(
                [asset], partition_key=key, resources=defs.resources, instance=instance, raise_on_error=False
            )
            return result.success

        with ThreadPoolExecutor(len(SHARDS)) as pool:
            assert list(pool.map(run, SHARDS)) == [True] * len(SHARDS)
        lock = DvcProject(root).lock()
        for key in SHARDS:
            filter_ = dg.AssetRecordsFilter(asset_key=asset.key, asset_partitions=[key])
            (record,) = instance.fetch_materializations(filter_, limit=2).records
            materialization = record.asset_materialization
            assert materialization is not None and materialization.metadata["dvc/outcome"].value == "executed"
            entry = lock[f"shard@{key}"]
            assert (materialization.tags or {})["dagster/data_version"] == entry.outs[f"shards/{key}"]
            assert (root / f"shards/{key}/f").read_text() == f"1{key}"
    locks = json.loads((root / ".dvc" / "tmp" / "rwlock").read_text())
    assert not any(locks.values()), "no lock stays behind"
    assert graphs.changed(root, DvcProject(root)) == set()
