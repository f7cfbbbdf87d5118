"""Dagster assets from a DVC project: edges, partitions and versions come from ``dvc.yaml`` and ``dvc.lock``."""

from __future__ import annotations

from pipelines.dvc.assets import build_dvc_assets, dvc_asset
from pipelines.dvc.checks import build_in_sync_checks
from pipelines.dvc.project import DvcProject
from pipelines.dvc.resource import DvcResource, Reproduction
from pipelines.dvc.sensor import build_dvc_lock_sensor
from pipelines.dvc.templating import DvcProjectError
from pipelines.dvc.translator import DagsterDvcTranslator

__all__ = [
    "DagsterDvcTranslator",
    "DvcProject",
    "DvcProjectError",
    "DvcResource",
    "Reproduction",
    "build_dvc_assets",
    "build_dvc_lock_sensor",
    "build_in_sync_checks",
    "dvc_asset",
]
