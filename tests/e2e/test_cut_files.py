"""A stage whose input was cut off, through the real dvc: one line that names the file, and no traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from paco_core.io.shards import INDEX, encode_png, write_shard
from tests.e2e.conftest import run_dvc
from tests.support.project_copy import copy_project

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]


def test_a_cut_shard_index_stops_the_stage_with_file_and_remedy(
    repository: Path, mlflow_template: Path, tmp_path: Path
) -> None:
    root = tmp_path / "paco"
    root.mkdir()
    copy_project(repository, root)
    shutil.copy(mlflow_template, root / "mlflow.db")
    for shard in "01":
        row = {"id": f"p{shard}", "prompt_id": "p", "seed": int(shard), "layout": "2x2"}
        write_shard(root / "data/grids" / f"shard-{shard}", [row], {row["id"]: encode_png(Image.new("RGB", (8, 8)))})
    index = root / "data/grids/shard-0" / INDEX
    index.write_bytes(index.read_bytes()[:100])
    done = run_dvc(root, "repro", "--single-item", "code", "rankings")
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert "shard-0/index.parquet: not a readable Parquet file (100 bytes" in told and "run `dvc repro grids`" in told
    assert "Traceback" not in told and not (root / "data/rankings").exists()
