"""The same graph through the real Dagster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

import dvc_graphs as graphs
from dagster_dvc import DvcProject
from paco_pipelines.defs.translator import PacoTranslator
from paco_pipelines.instance.settings import DEFAULTS

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]


def materialise(root: Path, home: Path, *select: str) -> subprocess.CompletedProcess[str]:
    """Materialise assets as a person would from the command line, in an instance of its own."""
    home.mkdir(exist_ok=True)
    shutil.copy(DEFAULTS, home)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "DAGSTER_HOME": str(home), "PATH": path, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "dagster", "asset", "materialize", "-m", "pipelines.definitions", "--select"]
    return subprocess.run([*command, " or ".join(select)], cwd=root, env=environment, capture_output=True, text=True)


def test_a_stage_that_is_up_to_date_is_restored_or_unchanged(
    smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))  # where its dagster.yaml keeps the stores
    before = (smoke / "dvc.lock").read_text()
    done = materialise(smoke, tmp_path / "home", 'key:"pairs"', 'key:"rankings"')
    assert done.returncode == 0, done.stderr[-3000:]
    assert (smoke / "dvc.lock").read_text() == before
    with dg.DagsterInstance.from_config(str(tmp_path / "home")) as instance:
        lock = yaml.safe_load(before)["stages"]
        for stage in ("pairs", "rankings"):
            event = instance.get_latest_materialization_event(dg.AssetKey(stage))
            assert event is not None and event.asset_materialization is not None
            tags = event.asset_materialization.tags or {}
            md5s = {out["path"]: out["md5"] for out in lock[stage]["outs"]}
            assert tags["dagster/data_version"] == md5s[f"data/{stage}"]
            told = event.asset_materialization.metadata
            assert told["dvc/outcome"].value in ("unchanged", "restored")
            assert told["dagster/row_count"].value > 0


def test_a_removed_out_is_made_again_by_dagster(smoke: Path, tmp_path: Path) -> None:
    shutil.rmtree(smoke / "data/pairs")
    done = materialise(smoke, tmp_path / "home", 'key:"pairs"')
    assert done.returncode == 0, done.stderr[-3000:]
    assert (smoke / "data/pairs/train.parquet").is_file()


def test_the_marks_of_our_graph_are_those_of_dvc(smoke: Path) -> None:
    """Partitions too: after an edit, on an instance that saw the graph before and on an empty one."""
    params = smoke / "params.yaml"
    before = params.read_text()
    with dg.DagsterInstance.ephemeral() as warm, dg.DagsterInstance.ephemeral() as cold:
        assert graphs.agree(smoke, warm) == set()
        tree = yaml.safe_load(before)
        tree["grids"]["guidance"] += 1
        tree["consistency_rank"]["bootstrap"] += 1
        params.write_text(yaml.safe_dump(tree))
        try:
            assert graphs.agree(smoke, warm, cold) == {"grids@0", "grids@1", "consistency_rank"}
        finally:
            params.write_text(before)


#: What each page shows besides figures, rows and columns.
SHOWN = {
    "diverse_prompts": {"closest_prompts", "nearest_similarity", "graph"},
    "grids@0": {"contact_sheet"},
    "annotations": {"least_certain_rankings"},
    "pairs": {"one_sided_prompts", "rows/benchmark.parquet"},
    "cot_labels": {"answers"},
    "reward_lora": {"validations", "side_by_side"},
    "reward_merged": {"golden_pairs", "contact_sheet"},
    "policies@flux_t2is": {"evaluations", "contact_sheet", "before_and_after"},
    "policies@kontext_edit": {"evaluations", "contact_sheet", "before_and_after"},
    "policies@qwen_edit": {"evaluations", "contact_sheet", "before_and_after"},
    "consistency_rank": {"worst_rankings", "side_by_side"},
    "t2is": {"least_gain_in_gold_consistency", "contact_sheet", "before_and_after"},
    "t2is_bench": {"judged_sets"},
    "gedit": {"least_gain_in_gold_editing", "contact_sheet", "before_and_after"},
    "report": {"page"},
}


def test_every_page_says_something_and_fits_the_event_log(smoke: Path) -> None:
    project = DvcProject(smoke)
    for name, stage in project.stages.items():
        if stage.group not in project.assets:
            continue
        found = PacoTranslator().get_materialization_metadata(project, stage)
        assert SHOWN.get(name, set()) <= set(found), name
        figures = json.loads((smoke / f"data/metrics/{name.replace('@', '-')}.json").read_text())
        known = {key: value for key, value in figures.items() if value is not None}
        assert (found["dvc/figures"].data if known else {}) == known, "none is lost, and none is rounded there"
        curves = [key for key, value in found.items() if isinstance(value, (int, float)) and "/" not in key]
        assert curves == list(found)[: len(curves)] and len(curves) <= 20, "the headline comes first, and is short"
        assert curves or not known, name
        schema = found.get("dagster/column_schema")
        assert schema is None or all(column.description and column.type for column in schema.schema.columns), name
        pictures = found.get("contact_sheet")
        assert pictures is None or len(pictures.md_str) <= 48 * 1024
    assert found["page"].path == str(smoke / "data/report/index.html")
