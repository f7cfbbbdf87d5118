"""Parameters of edits: prompts, images of the base editors, and pairs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paco_core.config.params_base import (
    DISTINCT,
    MOST_DRAWN,
    Device,
    DrawnSide,
    Family,
    Fraction,
    Natural,
    Number,
    Positive,
    Section,
    Seed,
)
from paco_core.config.references import PipelineRef, UserFile

EditQuestion = Literal["edit_consistency", "edit_following"]  # templates of reward_model/instructions.py


class EditingParams(Section):
    source: Literal["storybook", "import"]
    """Source of the editing pairs."""
    count: Natural | None
    """Number of drawn edits, or rows of the file. `null` uses the complete file."""
    questions: list[EditQuestion] = Field(default=["edit_consistency"], min_length=1)
    """Queries for drawn edits, used alternately."""
    broken_share: Fraction = 0.0
    """Share of drawn edits that also change something else."""
    unheeded_share: Fraction = 0.0
    """Share of drawn edits that do not follow the instruction."""
    size: DrawnSide = 32
    """Side of a drawn image in pixels."""
    file: UserFile | None = None
    """JSON Lines file with original, edited and instruction."""
    seed: Seed = 0
    """Seed of the drawn edits."""

    @model_validator(mode="after")
    def _count_or_file(self) -> EditingParams:
        if self.source == "storybook" and self.count is None:
            raise ValueError("source 'storybook' needs count: how many edits to draw (0 for none)")
        if self.source == "storybook" and (self.count or 0) > MOST_DRAWN:
            raise ValueError(f"count={self.count}: the storybook draws at most {MOST_DRAWN}")
        if self.source == "import" and not self.file:
            raise ValueError("source 'import' needs file: JSON Lines of original, edited, instruction")
        return self


class EditPromptsParams(Section):
    """Training and evaluation prompts of editing policies."""

    source: Literal["storybook", "file", "none"]
    """Source of the instructions and images. Use `none` if no recipe edits images."""
    count: Positive | None
    """Number of drawn edits, or rows of the file. `null` uses the complete file."""
    unseen: Positive
    """Images held out from training."""
    size: DrawnSide = 64
    """Side of a drawn image in pixels."""
    file: UserFile | None = None
    """JSON Lines file with instruction, input_image and optional key, task_type and instruction_language."""
    seed: Seed = 0
    """Seed of the drawn edits."""

    @model_validator(mode="after")
    def _source_has_what_it_needs(self) -> EditPromptsParams:
        if self.source == "file" and not self.file:
            raise ValueError("source 'file' needs file: JSON Lines of instruction and input_image")
        if self.source == "storybook":
            if self.count is None:
                raise ValueError("source 'storybook' needs count: how many edits to draw")
            if self.count > MOST_DRAWN:
                raise ValueError(f"count={self.count}: the storybook draws at most {MOST_DRAWN}")
            if self.unseen >= self.count:
                raise ValueError(f"unseen={self.unseen} holds back all of count={self.count}; choose fewer")
        return self


class EditPainter(Section):
    """A base editor."""

    family: Family
    """Model family."""
    model: PipelineRef
    """Image editor (folder or hub ID)."""
    guidance: Number
    """Guidance scale."""
    max_sequence_length: Positive
    """Maximum instruction tokens."""


class EditsParams(Section):
    """Images of the base editors for the training prompts, as training data of the reward model."""

    painters: list[EditPainter]
    """Base editors that generate the images. An empty list skips the stage."""
    device: Device
    """Device."""
    dtype: Literal["float32", "mixed", "bfloat16", "float16"]
    """Weight format. `mixed` uses float32 weights, and samples in bfloat16 if supported."""
    seeds: Annotated[list[Seed], Field(min_length=1), DISTINCT]
    """Seeds. Each seed gives one image per prompt."""
    size: DrawnSide
    """Side of a generated image in pixels."""
    steps: Positive
    """Sampling steps."""

    @model_validator(mode="after")
    def _each_once(self) -> EditsParams:
        painters = [(painter.family, painter.model) for painter in self.painters]
        if len(set(painters)) < len(painters):
            raise ValueError(f"painters {painters} contain a duplicate")
        return self
