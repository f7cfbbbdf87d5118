"""Dagster assets from a DVC project: edges, partitions and versions come from ``dvc.yaml`` and ``dvc.lock``.

Dagster is imported with the first name that needs it: `import dagster_dvc` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject

if TYPE_CHECKING:
    from dagster_dvc.assets import build_dvc_assets, build_dvc_sources, dvc_asset
    from dagster_dvc.checks import build_in_sync_checks
    from dagster_dvc.component import DvcProjectComponent
    from dagster_dvc.executor import in_process_if_up_to_date
    from dagster_dvc.job import build_whole_graph_job
    from dagster_dvc.reproduction import Reproduction
    from dagster_dvc.resource import DvcResource
    from dagster_dvc.sensor import build_dvc_lock_sensor
    from dagster_dvc.translator import DagsterDvcTranslator

__all__ = [
    "DagsterDvcTranslator",
    "DvcProject",
    "DvcProjectComponent",
    "DvcProjectError",
    "DvcResource",
    "Reproduction",
    "build_dvc_assets",
    "build_dvc_lock_sensor",
    "build_dvc_sources",
    "build_in_sync_checks",
    "build_whole_graph_job",
    "dvc_asset",
    "in_process_if_up_to_date",
]
_WITH_DAGSTER = {
    "DagsterDvcTranslator": "translator",
    "DvcProjectComponent": "component",
    "DvcResource": "resource",
    "Reproduction": "reproduction",
    "build_dvc_assets": "assets",
    "build_dvc_lock_sensor": "sensor",
    "build_dvc_sources": "assets",
    "build_in_sync_checks": "checks",
    "build_whole_graph_job": "job",
    "dvc_asset": "assets",
    "in_process_if_up_to_date": "executor",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_DAGSTER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WITH_DAGSTER[name]}"), name)
