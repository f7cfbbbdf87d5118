"""Data from outside as pydantic models: the types of JSON, and what is wrong, in a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


class StrictModel(BaseModel):
    """Data that people or other programs write: no value is converted.

    So true is no number, "false" is not false, "7" is not 7, and numbers are finite.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def faults(error: ValidationError, depth: int | None = None) -> list[str]:
    """Each fault as ``key: what is wrong``, without the value, which may be long or a secret.

    Args:
        depth: how many parts of a key are named at most.
    """
    found = error.errors(include_input=False, include_url=False)
    keys = [".".join(map(str, fault["loc"][:depth])) for fault in found]  # none for a fault of the whole
    return [f"{key}: {message(fault)}" if key else message(fault) for key, fault in zip(keys, found, strict=True)]


def first_fault(error: ValidationError) -> str:
    """The first fault of :func:`faults`."""
    return faults(error)[0]


def message(fault: Mapping[str, Any]) -> str:
    """What is wrong; of a check of ours in our words alone."""
    return str(fault["msg"]).removeprefix("Value error, ")
