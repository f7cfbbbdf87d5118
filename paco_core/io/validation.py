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


def validation_errors(error: ValidationError, depth: int | None = None) -> list[str]:
    """Each fault as ``key: what is wrong``, without the value, which may be long or a secret.

    Args:
        depth: how many parts of a key are named at most.
    """
    details = error.errors(include_input=False, include_url=False)
    keys = [".".join(map(str, detail["loc"][:depth])) for detail in details]  # none for a fault of the whole
    return [f"{key}: {message(detail)}" if key else message(detail) for key, detail in zip(keys, details, strict=True)]


def first_validation_error(error: ValidationError) -> str:
    """The first error of :func:`validation_errors`."""
    return validation_errors(error)[0]


def message(detail: Mapping[str, Any]) -> str:
    """What is wrong; of a check of ours in our words alone."""
    return str(detail["msg"]).removeprefix("Value error, ")
