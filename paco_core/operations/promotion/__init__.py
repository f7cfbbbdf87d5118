"""Promotion: champions and challengers in the MLflow registry, and the rules that move their aliases."""
