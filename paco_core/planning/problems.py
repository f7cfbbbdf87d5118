"""What checks refuse, collected: one line each, by the parameter that asks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from paco_core.io.files import DataError

T = TypeVar("T")


class Problems(list[str]):
    """Lines that begin with a key of ``params.yaml``."""

    def attempt(self, key: str, check: Callable[..., T], *given: object) -> T | None:
        """What a check returns; None where it raises a DataError, which is noted under the key."""
        try:
            return check(*given)
        except DataError as error:
            message = str(error)
            self.append(message if message.startswith(key) else f"{key}: {message}")
            return None
