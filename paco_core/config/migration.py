"""Parameter files of an earlier version, written again with the keys of this one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

from ruamel.yaml.comments import CommentedMap

from paco_core.config.execution import earlier_places, has
from paco_core.config.graph_keys import left_out, named_keys
from paco_core.config.params import PARAMS_FILE, Params
from paco_core.config.profiles import BASE, document, plain, write


def migrate(root: Path) -> str:
    """Move keys of earlier versions in ``params.yaml`` and the profiles; comments go along.

    A whole file, ``params.yaml`` or the storybook profile, also gets what it leaves out and ``dvc.yaml`` names: DVC
    runs no stage without.

    Returns:
        What was done, a line a file, and one for what was added.

    Raises:
        ParamsError: when a file is no YAML, has a key at both places, or a whole one is invalid after all moves.
    """
    lines = []
    for path in [root / PARAMS_FILE, *sorted((root / "profiles").glob("*.yaml"))]:
        if path.is_file():
            tree = document(path)
            old = [key for key in earlier_places(Params) if has(tree, key)]
            for key in old:
                _move(tree, key, earlier_places(Params)[key])
            if old:
                write(path, tree)
            name = path.relative_to(root).as_posix()
            lines.append(f"{name}: {len(old)} keys moved" if old else f"{name}: every key is where it belongs")
    return "\n".join([*lines, *_add_left_out(root)])


def _add_left_out(root: Path) -> Iterator[str]:
    """Add what ``dvc.yaml`` names to the whole files; a line a file that lacked something."""
    named = named_keys(root)
    for name in (PARAMS_FILE, f"profiles/{BASE}.yaml"):
        if not (path := root / name).is_file():
            continue
        tree = document(path)
        if added := left_out(named, plain(tree)):
            for key, value in added.items():
                *sections, last = key.split(".")
                reduce(lambda inner, section: inner.setdefault(section, CommentedMap()), sections, tree)[last] = value
            write(path, tree)
            yield f"{name}: added {', '.join(added)}, with defaults"


def _move(tree: Any, old: str, new: str) -> None:
    *sections, name = old.split(".")
    above = [tree]
    for section in sections:
        above.append(above[-1][section])
    comment, value = above[-1].ca.items.get(name), above[-1].pop(name)
    for holder, section in reversed(list(zip(above[:-1], sections, strict=True))):
        if not holder[section]:
            del holder[section]
    *sections, name = new.split(".")
    for depth, section in enumerate(sections):
        if not isinstance(tree.get(section), CommentedMap):
            tree.insert(len(tree) if depth == 0 else 0, section, CommentedMap())
        tree = tree[section]
    tree.setdefault(name, value)
    if comment is not None:
        tree.ca.items.setdefault(name, comment)
