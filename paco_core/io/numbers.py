"""Types of command-line arguments that are numbers: every one has a least and a most, which argparse names."""

from __future__ import annotations

import argparse
from collections.abc import Callable

MOST = 1_000_000
PORTS = (0, 65535)


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
    """The type of an argument that is a whole number within bounds."""

    def read(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text}: expected a number from {least} to {most}")
        return number

    read.__name__ = "number"  # argparse names it where the text is none
    return read


def decimal(least: float, most: float = MOST) -> Callable[[str], float]:
    """The type of an argument that is a number within bounds; NaN is within none."""

    def read(text: str) -> float:
        number = float(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text}: expected a number from {least:g} to {most:g}")
        return number

    read.__name__ = "number"
    return read
