"""The index of a pipeline's folder: its class and its parts, without loading them.

diffusers writes ``model_index.json`` for an ordinary pipeline, and ``modular_model_index.json`` for a modular one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paco_core.io.files import DataError, read_json

ORDINARY, MODULAR = "model_index.json", "modular_model_index.json"
INDEXES = (ORDINARY, MODULAR)
#: Parts that rewrite prompts. paco encodes prompts as they are, so it neither downloads nor loads these parts.
REWRITERS = ("prompt_upsampler", "prompt_upsampler_processor")


def find_index(folder: Path) -> Path | None:
    """The index of a pipeline's folder; None if there is none."""
    return next((folder / name for name in INDEXES if (folder / name).is_file()), None)


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a pipeline's folder in the form of ``model_index.json``: each part is ``[library, class]``.

    The result is empty if there is no index. It does not contain :data:`REWRITERS`.

    Raises:
        DataError: if the index is not a JSON object.
    """
    file = find_index(folder)
    index = {} if file is None else read_json(file)
    if not isinstance(index, dict):
        raise DataError(f"{file}: expected an object with the parts of a pipeline, got {type(index).__name__}")
    return {name: _part(entry) for name, entry in index.items() if name not in REWRITERS}


def _part(entry: Any) -> Any:
    """An entry of an index. In a modular index, a part is ``[library, class, where to load it from]``."""
    if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[2], dict):
        return entry
    return entry[2].get("type_hint") or entry[:2]
