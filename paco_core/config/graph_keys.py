"""Keys of ``params.yaml`` that ``dvc.yaml`` uses. After an update, the two files may be of different versions.

DVC reports a missing key only when it runs the stage that reads it, and its message does not explain the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from dvc_project.errors import DvcProjectError
from dvc_project.project import GRAPH_FILE
from dvc_project.reading import read_data
from paco_core.config.execution import earlier_places, has
from paco_core.config.params import PARAMS_FILE, OtherVersionError, Params, ParamsError, load, parse, read_text, tree_of

_PLACE = re.compile(r"\$\{([\w.]+)\}")
_LOOP = ("item", "key")  # what a `foreach` sets itself


def named_keys(root: Path) -> dict[str, str]:
    """Each key in ``params`` or ``${KEY}`` of ``dvc.yaml``, with the first stage that uses it.

    Raises:
        DvcProjectError: when the file is not a YAML mapping.
    """
    stages, stages_by_key = read_data(root / GRAPH_FILE).get("stages"), dict[str, str]()
    for stage, definition in stages.items() if isinstance(stages, Mapping) else ():
        for key in _keys(definition):
            stages_by_key.setdefault(key, str(stage))
    return stages_by_key


def _keys(tree: Any) -> Iterator[str]:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            entries = value if name == "params" and isinstance(value, list) else []
            yield from (key for key in entries if isinstance(key, str) and "${" not in key)
            yield from _keys(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _keys(value)
    elif isinstance(tree, str):
        yield from (key for key in _PLACE.findall(tree) if key.split(".")[0] not in _LOOP)


def absent_keys(keys: Iterable[str], tree: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a tree of parameters does not contain, with their defaults.

    Raises:
        ParamsError: when the tree is invalid.
    """
    lacking = [key for key in keys if not has(tree, key)]
    defaults = parse(tree).model_dump(mode="json") if lacking else {}
    return {key: reduce(getitem, key.split("."), defaults) for key in lacking if has(defaults, key)}


def validate_version(root: Path) -> None:
    """Check that ``params.yaml`` contains the keys of ``dvc.yaml``.

    Raises:
        OtherVersionError: listing missing keys and the remedy.
        ParamsError: when ``params.yaml`` is missing or invalid.
    """
    path = root / PARAMS_FILE
    load(path)
    tree = tree_of(read_text(path), path)
    stages_by_key = named_keys(root)
    if absent := absent_keys(stages_by_key, tree):
        raise OtherVersionError(
            f"{PARAMS_FILE}: has no {', '.join(absent)}, which {GRAPH_FILE} names; `paco params --migrate` adds what "
            "is missing, with its default"
        )
    if old := {key: new for key in stages_by_key if not has(tree, key) and (new := _present_place(key))}:
        key, new = next(iter(old.items()))
        tail = f", and {len(old) - 1} keys more are elsewhere" if len(old) > 1 else ""
        raise OtherVersionError(
            f"{GRAPH_FILE}: the file is of an earlier version: {stages_by_key[key]} uses {key}, which is {new} "
            f"now{tail}; create a new project with `paco init FOLDER` and copy its files except .git, .env and "
            f"{PARAMS_FILE} here"
        )


def cause(error: DvcProjectError, root: Path) -> str:
    """The message about an unreadable graph: another version than the parameters, or the error itself."""
    try:
        validate_version(root)
    except OtherVersionError as version_error:
        return str(version_error)
    except (DvcProjectError, ParamsError):
        pass
    return str(error)


def _present_place(key: str) -> str | None:
    """The current name of a key of an earlier version; for a section, that of its first key."""
    places = earlier_places(Params)
    return places.get(key) or next((new for old, new in places.items() if old.startswith(f"{key}.")), None)
