"""Figures of an asset's versions, from the materialisations that Dagster knows."""

from __future__ import annotations

import dagster as dg

from dagster_dvc.metrics import ALL_METRICS
from dagster_dvc.reproduction import LOCK_DIGEST_TAG

Figures = dict[str, float | None]
_EVENTS_READ = 100


def last_two_versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[Figures, Figures | None]:
    """The figures of the newest version and of the version before it, which another run of the stage made.

    Materialisations that found the newest version unchanged, or restored it, are passed over.
    """
    versions: dict[str, Figures] = {}
    for record in instance.fetch_materializations(key, limit=_EVENTS_READ).records:
        event = record.asset_materialization
        if event is None:
            continue
        digest = (event.tags or {}).get(LOCK_DIGEST_TAG, str(record.storage_id))
        values = {name: value.value for name, value in event.metadata.items()}
        if isinstance(exact := values.get(ALL_METRICS), dict):  # else an event of an earlier version of paco
            values = exact
        numbers: Figures = {name: float(v) for name, v in values.items() if isinstance(v, (int, float))}
        versions.setdefault(digest, numbers)
        if len(versions) == 2:
            break
    newest, before = [*versions.values(), None, None][:2]
    return newest or {}, before
