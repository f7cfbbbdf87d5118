"""The keys of ``params.yaml`` that ``dvc.yaml`` names: after an update the two may be of different versions.

DVC refuses a key that is not there when it comes to the stage that reads it, which may be hours after it began, and a
``foreach`` without its items at once; neither message names the remedy.
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
    """Each key that ``dvc.yaml`` names in ``params`` or as ``${KEY}``, with the first stage that does.

    Raises:
        DvcProjectError: when it is no YAML, or no mapping.
    """
    stages, found = read_data(root / GRAPH_FILE).get("stages"), dict[str, str]()
    for stage, definition in stages.items() if isinstance(stages, Mapping) else ():
        for key in _keys(definition):
            found.setdefault(key, str(stage))
    return found


def _keys(tree: Any) -> Iterator[str]:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            listed = value if name == "params" and isinstance(value, list) else []
            yield from (key for key in listed if isinstance(key, str) and "${" not in key)
            yield from _keys(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _keys(value)
    elif isinstance(tree, str):
        yield from (key for key in _PLACE.findall(tree) if key.split(".")[0] not in _LOOP)


def left_out(named: Iterable[str], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the keys that ``dvc.yaml`` names which a tree of parameters leaves to their defaults, with these.

    Raises:
        ParamsError: when the tree is invalid.
    """
    lacking = [key for key in named if not has(tree, key)]
    defaults = parse(tree).model_dump(mode="json") if lacking else {}
    return {key: reduce(getitem, key.split("."), defaults) for key in lacking if has(defaults, key)}


def refuse_other_version(root: Path) -> None:
    """Find keys that ``dvc.yaml`` names and ``params.yaml`` does not hold.

    Raises:
        OtherVersionError: naming them and the remedy.
        ParamsError: when ``params.yaml`` is missing or invalid.
    """
    path = root / PARAMS_FILE
    load(path)
    tree = tree_of(read_text(path), path)
    named = named_keys(root)
    if absent := left_out(named, tree):
        raise OtherVersionError(
            f"{PARAMS_FILE}: has no {', '.join(absent)}, which {GRAPH_FILE} names; `paco params --migrate` adds what "
            "is missing, with its default"
        )
    if old := {key: new for key in named if not has(tree, key) and (new := _present_place(key))}:
        key, new = next(iter(old.items()))
        more = f", and {len(old) - 1} keys more are elsewhere" if len(old) > 1 else ""
        raise OtherVersionError(
            f"{GRAPH_FILE}: is of an earlier version: {named[key]} names {key}, which is {new} now{more}; lay out a "
            f"new project with `paco init FOLDER` and copy all of it but .git, .env and {PARAMS_FILE} over this one"
        )


def cause(error: DvcProjectError, root: Path) -> str:
    """What to print of a graph that cannot be read: that it is of another version than the parameters, if it is."""
    try:
        refuse_other_version(root)
    except OtherVersionError as found:
        return str(found)
    except (DvcProjectError, ParamsError):
        pass
    return str(error)


def _present_place(key: str) -> str | None:
    """Where a key of an earlier version is now; of a section, where its first key is."""
    places = earlier_places(Params)
    return places.get(key) or next((new for old, new in places.items() if old.startswith(f"{key}.")), None)
