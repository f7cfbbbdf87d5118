"""Which version is in use: champions and challengers in the MLflow registry, and what moves them."""
