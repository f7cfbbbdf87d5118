"""The same graph through the real Dagster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def materialise(root: Path, home: Path, *select: str) -> subprocess.CompletedProcess[str]:
    """Materialise assets as a person would from the command line, in an instance of its own."""
    home.mkdir(exist_ok=True)
    shutil.copy(root / "dagster.yaml", home)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "DAGSTER_HOME": str(home), "PATH": path, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "dagster", "asset", "materialize", "-m", "pipelines.definitions", "--select"]
    return subprocess.run([*command, " or ".join(select)], cwd=root, env=environment, capture_output=True, text=True)


def test_a_stage_that_is_up_to_date_is_restored_or_unchanged(smoke: Path, tmp_path: Path) -> None:
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
            assert event.asset_materialization.metadata["dvc/outcome"].value in ("unchanged", "restored")


def test_a_removed_out_is_made_again_by_dagster(smoke: Path, tmp_path: Path) -> None:
    shutil.rmtree(smoke / "data/pairs")
    done = materialise(smoke, tmp_path / "home", 'key:"pairs"')
    assert done.returncode == 0, done.stderr[-3000:]
    assert (smoke / "data/pairs/train.parquet").is_file()
