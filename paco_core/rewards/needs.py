"""Requirements of rewards: models, sections, keys and libraries. They are validated before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from paco_core.io.files import DataError

if TYPE_CHECKING:
    from paco_core.config.params import RewardTerm
    from paco_core.data.records.records import PromptRecord

#: The kind of model of each reward that loads one.
MODELS = {
    **dict.fromkeys(("clip_t", "clip_i", "clip_score"), "a folder or hf-hub name of an open_clip model"),
    "pickscore": "a folder or hub id, such as yuvalkirstain/PickScore_v1",
}

#: The required keys of each reward that queries an external model.
SECTIONS = {"http": "url and model", "rubric": "endpoint and criteria"}


def validate_panel_counts(reward: str, records: Iterable[PromptRecord]) -> None:
    """Raise DataError for a record with a single panel, because the reward compares panels."""
    for record in records:
        rows, columns = record.grid
        if rows * columns < 2:
            raise DataError(
                f"prompt {record.idx}: layout {record.layout} has one panel, but {reward} needs at least two"
            )


def require_characters(reward: str, records: Iterable[PromptRecord]) -> None:
    """Raise DataError for a record without characters, because the reward compares panels with their images."""
    for record in records:
        if not record.characters:
            raise DataError(
                f"prompt {record.idx}: it has no characters, but {reward} compares panels with the images of "
                "characters; add the key characters to the record, or remove this reward"
            )


def require_model(reward: str, term: RewardTerm) -> str:
    """The model of a reward's term.

    Raises:
        DataError: if the reward loads a model and the term contains none.
    """
    if reward in MODELS and term.model is None:
        raise DataError(f"reward {reward} needs model: {MODELS[reward]}")
    return str(term.model)


def require_section(reward: str, term: RewardTerm) -> Any:
    """The section of a term with the name of the reward.

    Raises:
        DataError: if it is missing.
    """
    section = getattr(term, reward)
    if section is None:
        raise DataError(f"reward {reward} needs a section {reward}: {SECTIONS[reward]}")
    return section


def require_key(address: str, variable: str | None) -> str | None:
    """Read the key of an address from an environment variable; None without a variable.

    Raises:
        DataError: if the variable is empty.
    """
    key = os.environ.get(variable) if variable else None
    if variable and not key:
        raise DataError(f"{address}: the environment variable {variable} is empty; set it to the key")
    return key


def require_rapidocr() -> None:
    """Raise DataError if the OCR library is not installed."""
    if find_spec("rapidocr") is None:
        raise DataError("reward ocr needs rapidocr, which is not installed; `uv pip install rapidocr onnxruntime`")
