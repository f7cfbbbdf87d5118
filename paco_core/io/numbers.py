"""Types of command-line arguments that are numbers: every one has a least and a most, which argparse names."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

MOST = 1_000_000
PORTS = (0, 65535)
N = TypeVar("N", int, float)


def whole_number(least: int, most: int = MOST) -> Callable[[str], int]:
    """Argument type for integers within bounds."""
    return _within(int, least, most)


def decimal_number(least: float) -> Callable[[str], float]:
    """The type of an argument that is a number of at least ``least``; NaN is none."""
    return _within(float, least, MOST)


def _within(read: Callable[[str], N], least: N, most: N) -> Callable[[str], N]:
    def number(text: str) -> N:  # argparse prints the name of this function in errors
        value = read(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text}: expected a number from {least} to {most}")
        return value

    return number
