"""What outs say by themselves, and that a broken one undoes nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import dagster as dg
import pyarrow
import pytest
from pyarrow import parquet

import dvc_graphs as graphs
from dagster_dvc import DagsterDvcTranslator, DvcProject, DvcResource, build_dvc_assets, build_dvc_lock_sensor
from dagster_dvc.describing import describe_outs, holds_recorded, table_facts

pytestmark = pytest.mark.slow

GRAPH = """
stages:
  a:
    cmd: python put.py data/small.csv 'x,y' && cp -r made/. data/ && cp made.json figures.json
    deps: [made, made.json]
    outs: [data]
    metrics: [figures.json: {cache: false}]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = graphs.make(tmp_path, GRAPH)
    (root / "made").mkdir()
    rows = pyarrow.table({"id": ["p", "q", "r"], "score": [0.1, 0.2, 0.3]})
    parquet.write_table(rows, root / "made" / "large.parquet")
    (root / "made" / "lines.jsonl").write_text('{"idx": "a", "n": 1}\n{"idx": "b", "n": 2}\n')
    (root / "made" / "broken.parquet").write_bytes(b"PAR1 cut off")
    figures = {"accuracy": 0.5, "px64": {"gain": 1}, "name": "words", "lost": None, "flag": True}
    (root / "made.json").write_text(json.dumps(figures))
    return root


def test_figures_rows_and_columns(root: Path) -> None:
    graphs.dvc(root, "repro", "-q")
    project = DvcProject(root)
    found = describe_outs(project, project.stages["a"])
    assert (found["accuracy"], found["px64.gain"]) == (0.5, 1)
    assert not {"name", "lost", "flag"} & set(found)
    assert found["dagster/row_count"] == 3
    columns = {c.name: c.type for c in found["dagster/column_schema"].schema.columns}
    assert columns == {"id": "string", "score": "double"}
    assert (found["rows/lines.jsonl"], found["rows/small.csv"]) == (2, 0)
    assert "rows/broken.parquet" not in found and found["dvc/files"] == 4
    assert found["dvc/path"].path == str(root / "data")


def test_files_that_disappear_are_left_out(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs.dvc(root, "repro", "-q")
    project, look = DvcProject(root), Path.stat

    def look_and_lose(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        result = look(path, follow_symlinks=follow_symlinks)
        if path.suffix == ".parquet":
            path.unlink()  # as a stage that runs in a terminal
        return result

    monkeypatch.setattr(Path, "stat", look_and_lose)
    metadata = describe_outs(project, project.stages["a"])
    assert (metadata["dagster/row_count"], metadata["accuracy"]) == (2, 0.5)


def test_the_project_may_name_the_main_table(root: Path) -> None:
    (root / "dvc.yaml").write_text(GRAPH + "    meta: {dagster: {table: lines.jsonl}}\n")
    graphs.dvc(root, "repro", "-q")
    project = DvcProject(root)
    assert describe_outs(project, project.stages["a"])["dagster/row_count"] == 2


def test_a_run_from_the_terminal_shows_the_same(root: Path) -> None:
    graphs.dvc(root, "repro", "-q")
    defs = graphs.definitions(root)
    repository = defs.get_repository_def()
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, repository_def=repository)
        repository.get_sensor_def("dvc_lock").evaluate_tick(context)
        event = instance.get_latest_materialization_event(dg.AssetKey("a"))
        assert event is not None and event.asset_materialization is not None
        told = event.asset_materialization.metadata
        assert (told["accuracy"].value, told["dagster/row_count"].value) == (0.5, 3)


def test_a_pulled_lock_file_without_its_data_is_not_described(root: Path) -> None:
    graphs.dvc(root, "repro", "-q")
    project = DvcProject(root)
    stage, entry = project.stages["a"], project.lock()["a"]
    assert holds_recorded(project, stage, entry)
    (root / "figures.json").write_text('{"accuracy": 0.9}')
    assert not holds_recorded(project, stage, entry)
    (root / "figures.json").unlink()
    assert not holds_recorded(project, stage, entry)


def test_a_failing_description_undoes_nothing(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)

    class Broken(DagsterDvcTranslator):
        def get_materialization_metadata(self, project, stage):  # type: ignore[no-untyped-def]
            raise ValueError("no picture")

    project = DvcProject(root)
    (a, *_) = build_dvc_assets(project, translator=Broken())
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize([a], resources={"dvc": DvcResource(project_dir=str(root))}, instance=instance)
        (event,) = done.get_asset_materialization_events()
        assert "no picture" in event.materialization.metadata["dvc/not_described"].value
    with dg.DagsterInstance.ephemeral() as cold:
        defs = dg.Definitions(
            assets=[a],
            sensors=[build_dvc_lock_sensor(project, translator=Broken())],
            resources={"dvc": DvcResource(project_dir=str(root))},
        )
        context = dg.build_sensor_context(instance=cold, repository_def=defs.get_repository_def())
        defs.get_repository_def().get_sensor_def("dvc_lock").evaluate_tick(context)
        event = cold.get_latest_materialization_event(a.key)
        assert "no picture" in event.asset_materialization.metadata["dvc/not_described"].value


def test_columns_are_typed_and_described(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text('step,loss,note,left\n1,2,"two, and\na line",\n2,0.5,3,\n')
    facts = table_facts(tmp_path / "log.csv")
    assert facts is not None and facts.rows == 2
    assert facts.columns == {"step": "int", "loss": "float", "note": "string", "left": "int"}
    (tmp_path / "rows.jsonl").write_text('{"a": "x", "b": [1], "c": {"d": 1}, "e": null, "f": true}\n')
    facts = table_facts(tmp_path / "rows.jsonl")
    assert facts is not None
    assert facts.columns == {"a": "string", "b": "list", "c": "object", "e": "null", "f": "bool"}

    class Says(DagsterDvcTranslator):
        def get_column_description(self, stage, column):  # type: ignore[no-untyped-def]
            return f"{stage.group}'s {column}" if column == "step" else None

    graph = "stages:\n  a:\n    cmd: python put.py log.csv step,loss\n    outs: [log.csv]\n"
    root = graphs.make(tmp_path / "project", graph)
    graphs.dvc(root, "repro", "-q")
    project = DvcProject(root)
    schema = Says().get_materialization_metadata(project, project.stages["a"])["dagster/column_schema"].schema
    assert [(column.name, column.description) for column in schema.columns] == [("step", "a's step"), ("loss", None)]


@pytest.mark.parametrize("name", ["a.txt", "b.parquet", "c.jsonl", "absent.csv"])
def test_what_is_no_table_has_no_facts(tmp_path: Path, name: str) -> None:
    if name != "absent.csv":
        (tmp_path / name).write_text("[1, 2]\n")
    assert table_facts(tmp_path / name) is None
