"""What the models of ``params.yaml`` share: a closed section, bounded numbers, LoRA."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from paco_core.config.registered import registered

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Family = Annotated[str, registered("policies/families.py", "FAMILIES")]


class Section(BaseModel):
    """A section of the file: immutable, closed to unknown keys; params.py reads it strictly."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class LoraShape(Section):
    rank: Positive
    alpha: Positive


class LoraParams(LoraShape):
    targets: list[str] = Field(min_length=1)


class PolicyLora(LoraShape):
    targets: Annotated[list[str], Field(min_length=1)] | None = None  # null = the family's own
