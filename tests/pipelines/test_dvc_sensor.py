"""After one tick Dagster's stale marks are `dvc status`'s changed stages; a second tick reports nothing."""

from pathlib import Path

import dagster as dg
import graphs

from pipelines.dvc import DvcProject


def test_a_chain_through_its_life(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    with dg.DagsterInstance.ephemeral() as instance:
        assert graphs.agree(root, instance) == {"a", "b", "c"}
        graphs.dvc(root, "repro", "-q")
        assert graphs.agree(root, instance) == set()
        (root / "params.yaml").write_text("a: {text: bye}\n")
        assert graphs.agree(root, instance) == {"a"}
        graphs.dvc(root, "repro", "-q", "--single-item", "a")
        assert graphs.agree(root, instance) == {"b"}
        # A run in Dagster after a run in the terminal.
        defs = graphs.definitions(root)
        dg.materialize(list(defs.assets or []), resources=defs.resources, selection='key:"b"', instance=instance)
        assert graphs.agree(root, instance) == {"c"}
        (root / "params.yaml").write_text("a: {text: hello}\n")
        assert graphs.agree(root, instance) == {"a", "c"}
    with dg.DagsterInstance.ephemeral() as cold:
        assert graphs.agree(root, cold) == {"a", "c"}


def test_a_rerun_with_an_equal_result_does_not_stay_stale(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    graphs.dvc(root, "repro", "-q")
    with dg.DagsterInstance.ephemeral() as instance:
        graphs.agree(root, instance)
        (root / "put.py").write_text(graphs.PUT + "# the same result\n")
        assert graphs.agree(root, instance) == {"a", "b", "c"}
        graphs.dvc(root, "repro", "-q")
        assert graphs.agree(root, instance) == set()


def test_items_that_differ_and_folders_that_gather_them(tmp_path: Path) -> None:
    root = graphs.make_items(tmp_path)
    graphs.dvc(root, "repro", "-q")
    with dg.DagsterInstance.ephemeral() as instance:
        assert graphs.agree(root, instance) == {"clock"}
        text = (root / "params.yaml").read_text()
        (root / "params.yaml").write_text(text.replace("a: 1e-3", "a: 2e-3"))
        assert graphs.agree(root, instance) == {"clock", "shard@a"}
        (root / "params.yaml").write_text(text.replace("shards: [a, 2", "shards: [a, b, 2").replace("{a:", "{b: 0, a:"))
        graphs.dvc(root, "repro", "-q", "--single-item", "shard@b")
        trained = {s.name for s in DvcProject(root).groups["train"].stages}
        assert graphs.agree(root, instance) == {"clock", *trained}
        graphs.dvc(root, "repro", "-q", "--single-item", "train@small-1")
        assert graphs.agree(root, instance) == {"clock", *trained} - {"train@small-1"}
    with dg.DagsterInstance.ephemeral() as cold:
        assert graphs.agree(root, cold) == {"clock", *trained} - {"train@small-1"}


def test_one_of_two_outs_changes_only_its_reader(tmp_path: Path) -> None:
    graph = """
stages:
  a:
    cmd: python put.py x ${a.x} && python put.py y ${a.y}
    deps: [put.py]
    params: [a]
    outs: [x, y]
  reads_x: {cmd: python put.py rx x, deps: [x], outs: [rx]}
  reads_y: {cmd: python put.py ry y, deps: [y], outs: [ry]}
"""
    root = graphs.make(tmp_path, graph, "a: {x: 1, y: 1}\n")
    graphs.dvc(root, "repro", "-q")
    with dg.DagsterInstance.ephemeral() as instance:
        assert graphs.agree(root, instance) == set()
        (root / "params.yaml").write_text("a: {x: 2, y: 1}\n")
        graphs.dvc(root, "repro", "-q", "--single-item", "a")
        assert graphs.agree(root, instance) == {"reads_x"}


def test_no_lock_no_event(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)
    with dg.DagsterInstance.ephemeral() as instance:
        assert graphs.tick(root, instance)[1] == "Dagster and dvc.lock agree"
        assert instance.get_latest_materialization_event(dg.AssetKey("a")) is None
