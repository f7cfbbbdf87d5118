"""The Dagster face of the project: assets, checks, schedules and sensors, derived from ``dvc.yaml``."""
