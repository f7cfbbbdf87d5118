"""What the models of ``params.yaml`` share: a closed section, bounded numbers, LoRA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, get_args

from pydantic import BaseModel, ConfigDict, Field

from paco_core.config.registered import registered


class Input:
    """Marks a parameter that names a file or folder of the project, or a model of a hub."""


#: What a stage reads because a parameter names it; runtime/stage_code.py follows its content.
InputPath = Annotated[str, Input()]
Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Family = Annotated[str, registered("policies/families.py", "FAMILIES")]


class Section(BaseModel):
    """A section of the file: immutable, closed to unknown keys; params.py reads it strictly."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def input_paths(section: Section, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted key and value of each parameter below a section that is marked as :class:`Input` and set."""
    for name, field in type(section).model_fields.items():
        marked = any(isinstance(mark, Input) for mark in field.metadata) or _marks(field.annotation)
        yield from _inputs(getattr(section, name), f"{prefix}{name}", marked)


def _inputs(value: object, key: str, marked: bool) -> Iterator[tuple[str, str]]:
    if isinstance(value, Section):
        yield from input_paths(value, f"{key}.")
    elif isinstance(value, dict | list | tuple):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for name, part in parts:
            yield from _inputs(part, f"{key}.{name}", marked)
    elif marked and isinstance(value, str):
        yield key, value


def _marks(annotation: object) -> bool:
    """Whether a type, or one that it is made of, is marked."""
    parts = get_args(annotation)
    return any(isinstance(part, Input) or _marks(part) for part in parts)


class LoraShape(Section):
    rank: Positive
    alpha: Positive


class LoraParams(LoraShape):
    targets: list[str] = Field(min_length=1)


class PolicyLora(LoraShape):
    targets: Annotated[list[str], Field(min_length=1)] | None = None  # null = the family's own
