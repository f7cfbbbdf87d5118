"""The Dagster code of every paco project: assets, checks, schedules and sensors, derived from its ``dvc.yaml``."""
