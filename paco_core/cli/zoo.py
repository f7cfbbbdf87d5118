"""``paco zoo``: training of the small models, which only a clone contains."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from paco_core.io.files import DataError


def load_command() -> ModuleType:
    """The module ``zoo.command`` of a clone.

    Raises:
        DataError: in an installation from a wheel, which contains the weights, but not their training.
    """
    try:
        return import_module("zoo.command")
    except ModuleNotFoundError as error:
        if error.name not in ("zoo", "zoo.command"):
            raise
        raise DataError(
            "the package zoo/ is missing: how the small models are trained is part of a clone of paco, not of its wheel"
        ) from None
