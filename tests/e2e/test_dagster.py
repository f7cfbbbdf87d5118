"""The same graph through the real Dagster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_removed_out_is_made_again_by_dagster(smoke: Path, tmp_path: Path) -> None:
    shutil.rmtree(smoke / "data/pairs")
    result = materialise(smoke, tmp_path / "home", 'key:"pairs"')
    assert result.returncode == 0, result.stderr[-3000:]
    assert (smoke / "data/pairs/train.parquet").is_file()


#: What each page shows besides figures, rows and columns.
EXPECTED_ROWS = {
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
        metadata = PacoTranslator().get_materialization_metadata(project, stage)
        assert EXPECTED_ROWS.get(name, set()) <= set(metadata), name
        figures = json.loads((smoke / f"data/metrics/{name.replace('@', '-')}.json").read_text())
        finite_figures = {key: value for key, value in figures.items() if value is not None}
        assert (metadata["dvc/figures"].data if finite_figures else {}) == finite_figures, (
            "none is lost, and none is rounded there"
        )
        curves = [key for key, value in metadata.items() if isinstance(value, (int, float)) and "/" not in key]
        assert curves == list(metadata)[: len(curves)] and len(curves) <= 20, "the headline comes first, and is short"
        assert curves or not finite_figures, name
        schema = metadata.get("dagster/column_schema")
        assert schema is None or all(column.description and column.type for column in schema.schema.columns), name
        pictures = metadata.get("contact_sheet")
        assert pictures is None or len(pictures.md_str) <= 48 * 1024
    assert metadata["page"].path == str(smoke / "data/report/index.html")
