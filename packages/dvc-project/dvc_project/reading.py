"""Files of parameters and of DVC, each read as DVC reads it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dvc_project.errors import DvcProjectError, MergeConflictError
from dvc_project.python_params import python_params
from dvc_project.yaml import parse_yaml

#: By suffix, in whatever case; every other file is YAML.
_KINDS: Mapping[str, Callable[[str], Any]] = {".json": json.loads, ".toml": tomllib.loads, ".py": python_params}


def utf8_text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _conflict(text: str) -> int | None:
    """The line of a mark that a merge left for people to resolve."""
    return next((n for n, line in enumerate(text.splitlines(), 1) if line.startswith(("<<<<<<< ", ">>>>>>> "))), None)


def read_data(path: Path, read: Callable[[Path], str] = utf8_text) -> dict[str, Any]:
    """A file that holds a mapping: JSON, TOML or Python by its suffix, else YAML; an empty one is an empty mapping.

    YAML is read with the library and the version (1.2) that DVC uses: ``1e-3`` is a number, ``on`` a word.

    Raises:
        DvcProjectError: when the file is missing, malformed, or no mapping.
    """
    try:
        text = read(path)
    except OSError as error:
        raise DvcProjectError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DvcProjectError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    try:
        data = _KINDS.get(path.suffix.lower(), parse_yaml)(text)
    except (ValueError, SyntaxError, RecursionError) as error:
        if (line := _conflict(text)) is not None:
            raise MergeConflictError(
                f"{path}: a merge conflict stands in line {line}: resolve it, or take one side with "
                f"`git checkout --ours {path.name}` or `--theirs`"
            ) from None
        raise DvcProjectError(f"{path}: {error}") from error
    if data and not isinstance(data, Mapping):
        raise DvcProjectError(f"{path}: expected a mapping, got {type(data).__name__}")
    return dict(data or {})
