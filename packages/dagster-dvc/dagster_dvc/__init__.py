"""Dagster assets from a DVC project: edges, partitions and versions come from ``dvc.yaml`` and ``dvc.lock``."""

from dagster_dvc.assets import build_dvc_assets, build_dvc_sources, dvc_assets
from dagster_dvc.checks import build_in_sync_checks
from dagster_dvc.component import DvcProjectComponent
from dagster_dvc.executor import in_process_if_up_to_date
from dagster_dvc.job import build_whole_graph_job
from dagster_dvc.reproduction import Reproduction
from dagster_dvc.resource import DvcResource
from dagster_dvc.sensor import build_dvc_lock_sensor
from dagster_dvc.translator import DagsterDvcTranslator
from dagster_dvc.version import __version__
from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject

__all__ = [
    "DagsterDvcTranslator",
    "DvcProject",
    "DvcProjectComponent",
    "DvcProjectError",
    "DvcResource",
    "Reproduction",
    "__version__",
    "build_dvc_assets",
    "build_dvc_lock_sensor",
    "build_dvc_sources",
    "build_in_sync_checks",
    "build_whole_graph_job",
    "dvc_assets",
    "in_process_if_up_to_date",
]
