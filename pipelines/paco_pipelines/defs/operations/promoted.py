"""Champions that were made in a terminal (`paco promote`, `paco rollback`), reported to Dagster."""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from dagster_dvc.mirror import DATA_VERSION, USER_PROVIDED, Events
from paco_core.operations.promotion.champions import CHAMPION, REWARD, Champions, Version


def key_of(name: str) -> tuple[dg.AssetKey, str | None]:
    """The asset that stands for the champion of a name, and its partition."""
    return (
        (dg.AssetKey(["champion", REWARD]), None) if name == REWARD else (dg.AssetKey(["champion", "policies"]), name)
    )


def mirror_champions(instance: dg.DagsterInstance, champions: Champions | None) -> list[str]:
    """Report the champions that Dagster does not know; a line for each.

    Without them Dagster says of what measures a champion that its upstream assets have never been materialised.

    Args:
        champions: the registry; None where nothing was registered yet.
    """
    found = [] if champions is None else [champions.at(name, CHAMPION) for name in champions.names()]
    return list(_reported(instance, [version for version in found if version is not None]))


def _reported(instance: dg.DagsterInstance, found: list[Version]) -> Iterator[str]:
    events = Events(instance)
    for version in found:
        key, partition = key_of(version.name)
        last = events.last(key, partition)
        if last is not None and last.version == version.md5:
            continue
        instance.report_runless_asset_event(
            dg.AssetMaterialization(
                asset_key=key,
                partition=partition,
                tags={DATA_VERSION: version.md5, USER_PROVIDED: "true"},
                metadata={"champion": f"version {version.number}", "mirrored": "made outside Dagster"},
            )
        )
        yield f"champion of {version.name}: version {version.number}"
