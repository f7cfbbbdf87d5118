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
from paco_core.config.references import PolicyRef, UserFile

EditQuestion = Literal["edit_consistency", "edit_following"]  # templates of reward_model/instructions.py


class EditingParams(Section):
    source: Literal["storybook", "import"]
    """Source of the editing pairs."""
    count: Natural | None
    """Number of edits that paco draws, or of rows that it reads from the file. `null` reads all rows of the file."""
    questions: list[EditQuestion] = Field(default=["edit_consistency"], min_length=1)
    """Queries for the drawn edits. If you list two queries, paco uses them alternately."""
    broken_share: Fraction = 0.0
    """Share of the drawn edits that also change a trait that the instruction does not mention."""
    unheeded_share: Fraction = 0.0
    """Share of the drawn edits that do not follow their instruction."""
    size: DrawnSide = 32
    """Side in pixels of the square images that paco draws."""
    file: UserFile | None = None
    """JSON Lines file of edits. Each line has the keys original, edited and instruction."""
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
    """Source of the editing instructions and their images: the embedded world, or a file. Use `none` if no recipe edits
    images."""
    count: Positive | None
    """Number of edits that paco draws, or of rows that it reads from the file. `null` reads all rows of the file."""
    unseen: Positive
    """Number of images that are held out from training."""
    size: DrawnSide = 64
    """Side in pixels of the square images that paco draws."""
    file: UserFile | None = None
    """JSON Lines file of editing prompts. Each line has the keys instruction and input_image, and optionally key,
    task_type and instruction_language."""
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
    model: PolicyRef
    """Image editor (folder or hub ID)."""
    guidance: Number
    """Guidance scale."""
    max_sequence_length: Positive
    """Maximum instruction tokens."""


class EditsParams(Section):
    """Images of the base editors for the training prompts, as training data of the reward model."""

    painters: list[EditPainter]
    """Base editing models that generate the edited images. If the list is empty, paco skips the stage `edits`."""
    device: Device
    """Device."""
    dtype: Literal["float32", "mixed", "bfloat16", "float16"]
    """Number format of the model's weights. `mixed` uses float32 weights, and samples in bfloat16 if the device
    supports bfloat16."""
    seeds: Annotated[list[Seed], Field(min_length=1), DISTINCT]
    """Random seeds. paco generates one image per prompt and seed."""
    size: DrawnSide
    """Side in pixels of the square images that the base editors generate."""
    steps: Positive
    """Sampling steps."""

    @model_validator(mode="after")
    def _each_once(self) -> EditsParams:
        painters = [(painter.family, painter.model) for painter in self.painters]
        if len(set(painters)) < len(painters):
            raise ValueError(f"painters {painters} contain a duplicate")
        return self
