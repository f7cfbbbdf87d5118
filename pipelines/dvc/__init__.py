"""Dagster assets from a DVC project: edges, partitions and versions come from ``dvc.yaml`` and ``dvc.lock``.

Dagster is imported with the first name that needs it: ``python -m pipelines.repro`` reads the graph without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject

if TYPE_CHECKING:
    from pipelines.dvc.assets import build_dvc_assets, dvc_asset
    from pipelines.dvc.checks import build_in_sync_checks
    from pipelines.dvc.job import build_whole_graph_job
    from pipelines.dvc.reproduction import Reproduction
    from pipelines.dvc.resource import DvcResource
    from pipelines.dvc.sensor import build_dvc_lock_sensor
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
    "build_whole_graph_job",
    "dvc_asset",
]
_WITH_DAGSTER = {
    "DagsterDvcTranslator": "translator",
    "DvcResource": "resource",
    "Reproduction": "reproduction",
    "build_dvc_assets": "assets",
    "build_dvc_lock_sensor": "sensor",
    "build_in_sync_checks": "checks",
    "build_whole_graph_job": "job",
    "dvc_asset": "assets",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_DAGSTER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WITH_DAGSTER[name]}"), name)
