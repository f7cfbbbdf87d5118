"""The assets of ``dvc.yaml``, one a stage: their texts, groups, edges and partitions stand there."""

from pipelines.defs.graph import PROJECT, TRANSLATOR
from pipelines.dvc import build_dvc_assets

ASSETS = build_dvc_assets(PROJECT, translator=TRANSLATOR)
