"""Descriptions and metadata of outs: a broken description does not stop the run."""

from __future__ import annotations

import json
from pathlib import Path

import dagster as dg
import pyarrow
import pytest
from pyarrow import parquet

import dvc_graphs as graphs
from dagster_dvc import DagsterDvcTranslator, DvcProject, DvcResource, build_dvc_assets
from dagster_dvc.describing import describe_outs, table_facts

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
    metadata = describe_outs(project, project.stages["a"])
    assert (metadata["accuracy"], metadata["px64.gain"]) == (0.5, 1)
    assert not {"name", "lost", "flag"} & set(metadata)
    assert metadata["dagster/row_count"] == 3
    columns = {c.name: c.type for c in metadata["dagster/column_schema"].schema.columns}
    assert columns == {"id": "string", "score": "double"}
    assert (metadata["rows/lines.jsonl"], metadata["rows/small.csv"]) == (2, 0)
    assert "rows/broken.parquet" not in metadata and metadata["dvc/files"] == 4
    assert metadata["dvc/path"].path == str(root / "data")


def test_a_failing_description_undoes_nothing(tmp_path: Path) -> None:
    root = graphs.make(tmp_path, graphs.CHAIN)

    class Broken(DagsterDvcTranslator):
        def get_materialization_metadata(self, project, stage):  # type: ignore[no-untyped-def]
            raise ValueError("no picture")

    project = DvcProject(root)
    (a, *_) = build_dvc_assets(project, translator=Broken())
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([a], resources={"dvc": DvcResource(project_dir=str(root))}, instance=instance)
        (event,) = result.get_asset_materialization_events()
        assert "no picture" in event.materialization.metadata["dvc/not_described"].value


def test_columns_are_typed(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text('step,loss,note,left\n1,2,"two, and\na line",\n2,0.5,3,\n')
    facts = table_facts(tmp_path / "log.csv")
    assert facts is not None and facts.rows == 2
    assert facts.columns == {"step": "int", "loss": "float", "note": "string", "left": "int"}
    (tmp_path / "rows.jsonl").write_text('{"a": "x", "b": [1], "c": {"d": 1}, "e": null, "f": true}\n')
    facts = table_facts(tmp_path / "rows.jsonl")
    assert facts is not None
    assert facts.columns == {"a": "string", "b": "list", "c": "object", "e": "null", "f": "bool"}
