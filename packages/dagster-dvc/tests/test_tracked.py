"""Data that ``.dvc`` files track, and entries under ``artifacts``, in Dagster."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

import dvc_graphs as graphs
from dagster_dvc import DvcProject, DvcProjectError, DvcResource, build_dvc_assets, build_dvc_lock_sensor
from dagster_dvc.assets import build_dvc_sources

GRAPH = """
artifacts:
  table: {path: data/table, type: data, labels: [rows], desc: "The table of ${word}"}
stages:
  table:
    cmd: python put.py data/table data/raw/people.csv
    deps: [put.py, data/raw]
    outs: [data/table]
  other: {cmd: python put.py loose free, outs: [loose]}
"""
PEOPLE = dg.AssetKey(["data", "raw", "people_csv"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project whose one source was added with the real ``dvc add``."""
    project = graphs.make(tmp_path, GRAPH, "word: people\n")
    (project / "data/raw").mkdir(parents=True)
    (project / "data/raw/people.csv").write_text("ann\n")
    graphs.dvc(project, "add", "-q", "data/raw/people.csv")
    return project


def definitions(root: Path) -> dg.Definitions:
    project = DvcProject(root)
    return dg.Definitions(
        assets=[*build_dvc_assets(project), *build_dvc_sources(project)],
        sensors=[build_dvc_lock_sensor(project)],
        resources={"dvc": DvcResource(project_dir=str(root))},
    )


def tick(root: Path, instance: dg.DagsterInstance) -> tuple[dg.Definitions, str]:
    defs = definitions(root)
    repository = defs.get_repository_def()
    context = dg.build_sensor_context(instance=instance, repository_def=repository)
    return defs, repository.get_sensor_def("dvc_lock").evaluate_tick(context).skip_message or ""


def test_an_added_file_is_an_external_asset_that_stages_read(root: Path) -> None:
    graph = definitions(root).get_repository_def().asset_graph
    assert graph.get(PEOPLE).is_external and not graph.get(PEOPLE).is_executable
    assert graph.get(dg.AssetKey("table")).parent_keys == {PEOPLE}
    assert not graph.get(dg.AssetKey("other")).parent_keys
    assert graph.get(PEOPLE).metadata["dvc/file"] == "data/raw/people.csv.dvc"


@pytest.mark.slow
def test_the_sensor_reports_each_version_once_and_marks_agree_with_dvc(root: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        graphs.dvc(root, "repro", "-q")
        project = DvcProject(root)
        defs, report = tick(root, instance)
        assert "data/raw/people.csv: unknown to Dagster" in report
        assert graphs.stale(defs, instance, project) == set() == graphs.changed(root, project)
        assert tick(root, instance)[1] == "Dagster and dvc.lock agree"

        before = instance.get_latest_materialization_event(PEOPLE)
        (root / "data/raw/people.csv").write_text("ann\nbob\n")
        graphs.dvc(root, "add", "-q", "data/raw/people.csv")
        defs, report = tick(root, instance)
        assert "data/raw/people.csv: data/raw/people.csv.dvc has another version" in report
        after = instance.get_latest_materialization_event(PEOPLE)
        assert before and after and before.asset_materialization and after.asset_materialization
        assert before.asset_materialization.tags != after.asset_materialization.tags
        assert after.asset_materialization.metadata["dvc/bytes"].value == 8
        assert graphs.stale(defs, instance, project) == {"table"} == graphs.changed(root, project)
        assert tick(root, instance)[1] == "Dagster and dvc.lock agree"

        dg.materialize(list(defs.assets or []), resources=defs.resources, selection='key:"table"', instance=instance)
        assert tick(root, instance)[1] == "Dagster and dvc.lock agree"
        assert graphs.stale(defs, instance, project) == set() == graphs.changed(root, project)


def test_artifacts_are_shown_on_the_assets_that_hold_them(root: Path) -> None:
    specs = {spec.key.to_user_string(): spec for assets in build_dvc_assets(DvcProject(root)) for spec in assets.specs}
    artifacts = specs["table"].metadata["dvc/artifacts"]
    assert isinstance(artifacts, dg.MarkdownMetadataValue)
    assert artifacts.value == "- **table**, data, rows, The table of people"
    assert "dvc/artifacts" not in specs["other"].metadata


@pytest.mark.parametrize("text", ["- a\n", "outs: {}\n", "outs: [a]\n"])
def test_a_malformed_file_is_named(root: Path, text: str) -> None:
    (root / "bad.dvc").write_text(text)
    with pytest.raises(DvcProjectError, match=r"bad\.dvc"):
        _ = DvcProject(root).tracked
