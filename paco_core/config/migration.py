"""Parameter files of an earlier version, written again with the keys of this one."""

from __future__ import annotations

import filecmp
import shlex
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from ruamel.yaml.comments import CommentedMap

from paco_core.config.execution import REMOVED, earlier_places, has
from paco_core.config.graph_keys import absent_keys, named_keys
from paco_core.config.params import PARAMS_FILE, Params, ParamsError
from paco_core.config.profiles import BASE, document, plain, write_yaml
from paco_core.io.shipped import IN_WHEEL, new_project_files

#: What was part of a project up to version 0.2.0, and is part of the wheel now.
NOW_SHIPPED = (
    "dagster.yaml",
    "launch",
    "locks",
    *(f"pipelines/{name}" for name in ("defs", "instance", "previews", "progress", "webserver")),
    *(f"pipelines/{name}.py" for name in ("antlr", "links", "mlflow_app", "repro", "ui")),
    "profiles/params.schema.json",
)
_USERS_OWN = (".gitignore", "README.md", PARAMS_FILE)


def migrate(root: Path) -> str:
    """Move or delete keys of earlier versions in ``params.yaml`` and the profiles; comments go along.

    A whole file, ``params.yaml`` or the storybook profile, also gets what it leaves out and ``dvc.yaml`` names: DVC
    runs no stage without. All files are read and checked before the first one is written.

    Returns:
        What was done, a line a file, one for what was added, and commands that replace files of an earlier version.

    Raises:
        ParamsError: when a file is no YAML, or has a key at both places with different values, or a whole one is
            invalid after all moves. Nothing is written then.
    """
    places, paths = earlier_places(Params), [root / PARAMS_FILE, *sorted((root / "profiles").glob("*.yaml"))]
    trees = {path.relative_to(root).as_posix(): document(path) for path in paths if path.is_file()}
    lines, changed, conflicts = list[str](), set[str](), list[str]()
    for name, tree in trees.items():
        old = [key for key in places if has(tree, key)]
        conflicts += [f"{name}: {conflict}" for key in old if (conflict := _move(tree, key, places[key]))]
        lines.append(f"{name}: {len(old)} keys moved" if old else f"{name}: every key is where it belongs")
        removed = [key for key in REMOVED if has(tree, key)]
        for key in removed:
            lines.append(f"{name}: deleted {key} ({plain(_value(tree, key))!r}): {REMOVED[key]}")
            _delete(tree, key)
        changed |= {name} if old or removed else set()
    if conflicts:
        raise ParamsError("\n".join([*conflicts, "remove one key of each pair; no file was written"]))
    graph_keys = named_keys(root)
    for name in (PARAMS_FILE, f"profiles/{BASE}.yaml"):
        if name in trees and (added := absent_keys(graph_keys, plain(trees[name]))):
            for key, value in added.items():
                _put(trees[name], key, value)
            lines.append(f"{name}: added {', '.join(added)}, with defaults")
            changed.add(name)
    for name in sorted(changed):
        write_yaml(root / name, trees[name])
    return "\n".join([*lines, *replacements(root)])


def _put(tree: Any, key: str, value: Any) -> None:
    *sections, last = key.split(".")
    reduce(lambda inner, section: inner.setdefault(section, CommentedMap()), sections, tree)[last] = value


def _move(tree: Any, old: str, new: str) -> str | None:
    """Move a key with its comment; what speaks against it where the new place holds another value."""
    value = _value(tree, old)
    if has(tree, new) and (present := _value(tree, new)) != value:
        return f"{old} is {value!r}, but {new}, its present name, is {present!r}"
    comment = _delete(tree, old)
    *sections, name = new.split(".")
    for depth, section in enumerate(sections):
        if tree.get(section) is not None and not isinstance(tree[section], CommentedMap):
            return f"{old} is {new} now, but {section} is {tree[section]!r}, expected a section"
        if not isinstance(tree.get(section), CommentedMap):
            tree.insert(len(tree) if depth == 0 else 0, section, CommentedMap())
        tree = tree[section]
    tree.setdefault(name, value)
    if comment is not None:
        tree.ca.items.setdefault(name, comment)
    return None


def _value(tree: Any, key: str) -> Any:
    return reduce(getitem, key.split("."), tree)


def _delete(tree: Any, key: str) -> Any:
    """Delete a key, and the sections that become empty; the key's comment, None without one."""
    *sections, name = key.split(".")
    above = [tree]
    for section in sections:
        above.append(above[-1][section])
    comment = above[-1].ca.items.get(name)
    del above[-1][name]
    for holder, section in reversed(list(zip(above[:-1], sections, strict=True))):
        if not holder[section]:
            del holder[section]
    return comment


def replacements(root: Path) -> Iterator[str]:
    """Lines with the commands that bring a project to this version; none in a clone, which git updates."""
    if not IN_WHEEL:
        return
    if removable := [name for name in NOW_SHIPPED if (root / name).exists()]:
        yield "paco ships these files now; remove them, unless you edited them:"
        yield f"  rm -r {shlex.join(removable)}"
    files = {name: file for name, file in new_project_files().items() if name not in _USERS_OWN}
    if different := [name for name, file in files.items() if not _is_equal(root / name, file)]:
        yield "these files differ from those of this version; replace them, unless you edited them:"
        yield from (f"  cp {shlex.quote(str(files[name]))} {shlex.quote(name)}" for name in different)


def _is_equal(place: Path, file: Path) -> bool:
    return place.is_file() and filecmp.cmp(place, file, shallow=False)
