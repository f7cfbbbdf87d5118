"""What the models of ``params.yaml`` share: a strict section, bounded numbers, LoRA."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A section of the file: strict, immutable, closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class LoraParams(Section):
    rank: Positive
    alpha: Positive
    targets: list[str] = Field(min_length=1)
