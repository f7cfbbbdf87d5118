"""Rounds in Dagster: partitions of assets, a job, and no circle."""

from __future__ import annotations

import shutil
from pathlib import Path

import dagster as dg
import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from dagster_dvc import DvcProject, build_dvc_assets
from paco_core.config import profiles
from paco_core.io.paths import in_round
from paco_pipelines.defs.resources import resources
from paco_pipelines.defs.sensors import answered_rounds
from tests.support.definitions import outline


@pytest.mark.slow
def test_rounds_are_partitions_of_assets_and_one_job_makes_one(
    repository: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(repository / name, tmp_path / name)
    shutil.copytree(repository / "profiles", tmp_path / "profiles")
    profiles.use(tmp_path, "rounds")
    project = DvcProject(tmp_path)
    rounds = [name for name in project.assets if in_round(name)]
    job = dg.define_asset_job("round", selection=dg.AssetSelection.assets(*rounds))
    sensor = answered_rounds(job)
    defs = dg.Definitions(assets=build_dvc_assets(project), jobs=[job], sensors=[sensor], resources=resources(tmp_path))
    repository_def = defs.get_repository_def()
    assert outline(repository_def) == snapshot(extension_class=JSONSnapshotExtension)
    resolved = repository_def.get_job("round").partitions_def
    assert resolved is not None
    assert resolved.get_partition_keys() == ["1", "2"]
