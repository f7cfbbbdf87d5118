"""Fixtures of the tests of `paco reproduce`."""

from tests.support.reproduced import completed_project, world

__all__ = ["completed_project", "world"]
