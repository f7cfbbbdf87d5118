"""What rewards cannot do without, looked up before anything is loaded and again where it is used."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from paco_core.io.files import DataError

if TYPE_CHECKING:
    from paco_core.config.params import RewardTerm
    from paco_core.data.records.records import PromptRecord

#: What a reward loads, for those that load a model.
MODELS = {
    **dict.fromkeys(("clip_t", "clip_i", "clip_score"), "a folder or hf-hub name of an open_clip model"),
    "pickscore": "a folder or hub id, such as yuvalkirstain/PickScore_v1",
}

#: What a reward that asks another model reads from a section of its own name.
SECTIONS = {"http": "url and model", "rubric": "endpoint and criteria"}


def refuse_single_panels(reward: str, records: Iterable[PromptRecord]) -> None:
    """Raise DataError for a record of one panel, where a reward compares panels with each other."""
    for record in records:
        rows, columns = record.grid
        if rows * columns < 2:
            raise DataError(f"prompt {record.idx}: layout {record.layout} has one panel, {reward} needs two")


def need_model(reward: str, term: RewardTerm) -> str:
    """The model that a reward's term names.

    Raises:
        DataError: when it names none, and the reward loads one.
    """
    if reward in MODELS and term.model is None:
        raise DataError(f"reward {reward} needs model: {MODELS[reward]}")
    return str(term.model)


def need_section(reward: str, term: RewardTerm) -> Any:
    """The section of a term that has the reward's name.

    Raises:
        DataError: when it is missing.
    """
    section = getattr(term, reward)
    if section is None:
        raise DataError(f"reward {reward} needs a section {reward}: {SECTIONS[reward]}")
    return section


def need_key(address: str, variable: str | None) -> str | None:
    """The key for an address, from an environment variable; None where no variable is named.

    Raises:
        DataError: when the variable is empty.
    """
    key = os.environ.get(variable) if variable else None
    if variable and not key:
        raise DataError(f"{address}: the environment variable {variable} holds no key")
    return key


def need_rapidocr() -> None:
    """Raise DataError where the library that reads letters is not installed."""
    if find_spec("rapidocr") is None:
        raise DataError(
            "reward ocr reads with rapidocr, which is not installed here; `uv pip install rapidocr onnxruntime`"
        )
