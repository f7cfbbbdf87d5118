"""The code location: what paco derives from ``dvc.yaml``. Merge assets, checks and schedules of your own here."""

from paco_pipelines.definitions import build_definitions

defs = build_definitions()
