"""Dagster's webserver with a guard before it."""
