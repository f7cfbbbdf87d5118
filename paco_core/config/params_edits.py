"""Parameters of edits: the prompts, what base editors paint of them, and the pairs that are made of edits."""

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
from paco_core.config.references import ModelRef, UserFile

EditQuestion = Literal["edit_consistency", "edit_following"]  # templates of reward_model/instructions.py


class EditingParams(Section):
    source: Literal["storybook", "import"]
    """where editing pairs come from"""
    count: Natural | None
    """how many edits are drawn, or rows of the file; null = all of the file"""
    questions: list[EditQuestion] = Field(default=["edit_consistency"], min_length=1)
    """what is asked about drawn edits, in turns"""
    broken_share: Fraction = 0.0
    """share of drawn edits that change more than was asked; the paper has none"""
    unheeded_share: Fraction = 0.0
    """share of drawn edits that change something else than was asked; the paper has none"""
    size: DrawnSide = 32
    """pixels of a drawn picture's side"""
    file: UserFile | None = None
    """JSON Lines of original, edited and instruction, for the source `import`"""
    seed: Seed = 0
    """seed of drawn edits"""

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
    """What editing policies are trained on and watched on."""

    source: Literal["storybook", "file", "none"]
    """where instructions and pictures come from; `none` = no recipe edits"""
    count: Positive | None
    """how many drawn edits, or rows of the file; null = all of the file"""
    unseen: Positive
    """pictures that no policy is trained on"""
    size: DrawnSide = 64
    """pixels of a drawn picture's side"""
    file: UserFile | None = None
    """JSON Lines of instruction, input_image and, if known, key, task_type and instruction_language, for the
    source `file`"""
    seed: Seed = 0
    """seed of drawn edits"""

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
    """A base editor; ``guidance`` and text window as in the recipes of ``policies``."""

    family: Family
    """an entry of `paco_core/policies/families.py`"""
    model: ModelRef
    """editor, a folder or hub id"""
    guidance: Number
    """guidance scale"""
    max_sequence_length: Positive
    """tokens of an instruction that the text encoder reads"""


class EditsParams(Section):
    """What base editors paint of the training edit prompts, for the reward model to learn from."""

    painters: list[EditPainter]
    """base editors that paint training edits for the reward model to learn from; none = nothing is painted"""
    device: Device
    """where they run"""
    dtype: Literal["float32", "mixed", "bfloat16", "float16"]
    """number format of their weights; mixed = float32, and painted in bfloat16 where the device computes it"""
    seeds: Annotated[list[Seed], Field(min_length=1), DISTINCT]
    """one picture of every prompt from each"""
    size: DrawnSide
    """pixels of a painted picture's side"""
    steps: Positive
    """sampling steps"""

    @model_validator(mode="after")
    def _each_once(self) -> EditsParams:
        painters = [(painter.family, painter.model) for painter in self.painters]
        if len(set(painters)) < len(painters):
            raise ValueError(f"painters {painters} contain a duplicate")
        return self
