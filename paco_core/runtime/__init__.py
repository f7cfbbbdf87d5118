"""What surrounds a run: the project that it belongs to, and what must not be shown of it."""
