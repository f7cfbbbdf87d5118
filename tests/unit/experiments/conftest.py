"""Fixtures of the tests of `paco reproduce`."""

from tests.support.reproduced import made, world

__all__ = ["made", "world"]
