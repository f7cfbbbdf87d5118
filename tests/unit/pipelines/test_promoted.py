"""Promotions from a terminal: Dagster records each one once, and again when the alias moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import dagster as dg

from paco_core.operations.promotion.champions import Champions, Version
from paco_pipelines.defs.operations import mirror_champions


@dataclass
class Registry:
    """Champions by name: md5s."""

    md5s: dict[str, str]

    def names(self) -> list[str]:
        return list(self.md5s)

    def at(self, name: str, _alias: str) -> Version | None:
        md5 = self.md5s[name]
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
        registry.md5s["flux_t2is"] = "1a"  # rolled back
        assert mirrored(instance) == ["champion of flux_t2is: version 1"]
        assert mirror_champions(instance, None) == []
