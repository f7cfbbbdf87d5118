"""What was promoted in a terminal is known to Dagster, once, and again when the alias moves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest

from paco_core.operations.promotion.champions import Champions, Version
from paco_pipelines.defs import operations, sensors
from paco_pipelines.defs.operations import key_of, mirror_champions
from pipelines.definitions import defs


@dataclass
class Registry:
    """Champions by name: md5s."""

    held: dict[str, str]

    def names(self) -> list[str]:
        return list(self.held)

    def at(self, name: str, _alias: str) -> Version | None:
        md5 = self.held[name]
        return Version(name, md5[0], f"data/{name}", md5, None, None, "") if md5 else None


def test_each_champion_is_reported_when_it_is_new() -> None:
    registry = Registry({"reward": "1a", "flux_t2is": "2b", "qwen_edit": ""})

    def mirrored(instance: dg.DagsterInstance) -> list[str]:
        return mirror_champions(instance, cast(Champions, registry))

    with dg.DagsterInstance.ephemeral() as instance:
        assert mirrored(instance) == ["champion of reward: version 1", "champion of flux_t2is: version 2"]
        assert mirrored(instance) == []
        event = instance.get_latest_materialization_event(dg.AssetKey(["champion", "policies"]))
        assert event is not None and event.asset_materialization is not None
        assert event.asset_materialization.partition == "flux_t2is"
        registry.held["flux_t2is"] = "1a"  # rolled back
        assert mirrored(instance) == ["champion of flux_t2is: version 1"]
        assert mirror_champions(instance, None) == []


@pytest.mark.parametrize(
    ("name", "asset"), [("reward", operations.champion_reward), ("x", operations.champion_policies)]
)
def test_the_asset_is_the_one_that_promotes(name: str, asset: Any) -> None:
    key, partition = key_of(name)
    assert key == asset.key and (partition is None) is (asset.partitions_def is None)


@pytest.mark.slow
def test_the_sensor_reads_the_registry_once_a_change(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sensors, "ROOT", project)
    file = project / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{file}")
    with dg.DagsterInstance.ephemeral() as instance:
        with dg.build_sensor_context(instance, repository_def=defs.get_repository_def()) as context:
            assert sensors.champions.evaluate_tick(context).skip_message == "Dagster and the registry agree"
        cursor = str(file.stat().st_mtime_ns) if file.is_file() else None
        with dg.build_sensor_context(instance, cursor, repository_def=defs.get_repository_def()) as context:
            said = sensors.champions.evaluate_tick(context).skip_message
    assert said == ("MLflow recorded nothing since the last tick" if cursor else "Dagster and the registry agree")
