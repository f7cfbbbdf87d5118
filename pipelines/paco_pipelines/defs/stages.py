"""The assets of ``dvc.yaml``, one a stage: their texts, groups, edges and partitions stand there."""

from dagster_dvc import build_dvc_assets
from paco_pipelines.defs.graph import PROJECT, TRANSLATOR

ASSETS = build_dvc_assets(PROJECT, translator=TRANSLATOR)
