"""Validation of external data with pydantic: JSON types, and one line per error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


class StrictModel(BaseModel):
    """Data of people or other programs: no value is converted.

    For example, true is not a number, "false" is not false, and "7" is not 7. Numbers must be finite.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def validation_errors(error: ValidationError, depth: int | None = None) -> list[str]:
    """Each error as ``key: problem``, without the value, which may be long or secret.

    Args:
        depth: maximum parts of a key.
    """
    details = error.errors(include_input=False, include_url=False)
    keys = [".".join(map(str, detail["loc"][:depth])) for detail in details]  # empty for an error of the complete model
    return [f"{key}: {message(detail)}" if key else message(detail) for key, detail in zip(keys, details, strict=True)]


def first_validation_error(error: ValidationError) -> str:
    """The first error of :func:`validation_errors`."""
    return validation_errors(error)[0]


def message(detail: Mapping[str, Any]) -> str:
    """The message of an error. Errors of paco's own checks keep their text."""
    return str(detail["msg"]).removeprefix("Value error, ")
