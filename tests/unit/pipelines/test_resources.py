"""Resources that run the stages, selected by environment variables."""

from pathlib import Path

import dagster as dg
import pytest

from dagster_dvc.slurm import SlurmDvcResource
from paco_pipelines.defs.resources import CONFIG, VARIABLE, resources


def test_the_environment_chooses_where_stages_run(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert type(resources()["dvc"]).__name__ == "DvcResource"
    monkeypatch.setenv(VARIABLE, "slurm")
    slurm = resources()["dvc"]
    assert isinstance(slurm, SlurmDvcResource) and slurm.pools == {"gpu": ["--gres=gpu:1"]}
    assert slurm.project_dir == str(repository) and slurm.grace_seconds == 30


def test_what_is_no_cluster_or_no_configuration_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "slrm")
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="slrm"):
        resources()
    monkeypatch.setenv(VARIABLE, "slurm")
    assert isinstance(resources(tmp_path)["dvc"], SlurmDvcResource), "by the file that paco ships"
    (tmp_path / "mine.yaml").write_text("partition: long\n")
    monkeypatch.setenv(CONFIG, "mine.yaml")
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"mine.yaml: .*partition"):
        resources(tmp_path)
