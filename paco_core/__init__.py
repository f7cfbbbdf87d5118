"""The library behind the pipeline: it imports neither Dagster nor DVC."""
