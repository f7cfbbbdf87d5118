"""The Dagster instance: where it keeps what it knows, and what is in it before anyone looks."""
