"""Rounds in Dagster: partitions of assets, a job, and no circle."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.json import JSONSnapshotExtension

from dagster_dvc import DvcProject, build_dvc_assets
from dvc_project.project import stages_of
from paco_core.config import profiles
from paco_core.io.paths import in_round
from paco_pipelines.defs.resources import resources
from paco_pipelines.defs.sensors import answered_rounds
from paco_pipelines.previews import metadata as previews
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


def test_the_page_of_a_round_shows_what_lies_in_its_place(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(repository / name, tmp_path / name)
    shutil.copytree(repository / "profiles", tmp_path / "profiles")
    profiles.use(tmp_path, "rounds")
    asked = []
    preview = SimpleNamespace(preview=lambda data, item: asked.append((data, item)) or {})
    monkeypatch.setattr(previews, "declaration", lambda _name: preview)
    for label in ("round_t2is@2", "round_policies@2", "policies@flux_t2is"):
        previews.preview_metadata(tmp_path, stages_of(tmp_path)[label])
    second = tmp_path / "data/rounds/2"
    assert asked == [(second, "2"), (second, "flux_t2is"), (tmp_path / "data", "flux_t2is")]
