"""Profiles: other scales of the same graph, each the keys that it changes of another.

``params.yaml`` as it comes is the storybook profile, which all others change. While another one is in use it lies as
``profiles/storybook.yaml``, byte for byte, and comes back from there. What was changed in ``params.yaml`` under another
profile is kept, too, in a file of its own: no other file holds it.
"""

from __future__ import annotations

import copy
import re
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from paco_core.config import params
from paco_core.config.params import ParamsError
from paco_core.io.atomic import atomic
from paco_core.io.messages import did_you_mean

BASE = "storybook"
ASIDE = Path(".paco") / "params"
EXTENDS = "extends"  # key of a profile that changes another one than the storybook one


def available(root: Path) -> list[str]:
    """Names of the profiles: those in ``profiles/``, and the storybook one."""
    return sorted({BASE, *(path.stem for path in (root / "profiles").glob("*.yaml"))})


def in_use(root: Path) -> str | None:
    """Name of the profile that ``params.yaml`` holds; None where it cannot be read."""
    try:
        tree = params.tree_of(params.read_text(root / params.PARAMS_FILE), root / params.PARAMS_FILE)
    except (ParamsError, OSError):
        return None
    return str(tree["profile"]) if isinstance(tree, dict) and "profile" in tree else None


def _file(root: Path, name: str) -> Path:
    if name == BASE and in_use(root) == BASE:
        return root / params.PARAMS_FILE
    path = root / "profiles" / f"{name}.yaml"
    if name == BASE and not path.is_file():
        raise ParamsError(
            f"profiles/{BASE}.yaml: no such file, and params.yaml holds {in_use(root) or 'no profile'!r}; bring the "
            "storybook profile back with `git checkout -- params.yaml`; where git holds another one, too, write "
            f"params.yaml as it comes with paco to profiles/{BASE}.yaml"
        )
    return path


def description(root: Path, name: str) -> str:
    """What a profile is for: the first sentence of the comment at the head of its file; empty where it has none."""
    lines = params.read_text(_file(root, name)).splitlines()
    head = " ".join(line.lstrip("# ").strip() for line in takewhile(lambda line: line.startswith("#"), lines))
    return re.split(r"(?<=[^.]\.)\s", head, maxsplit=1)[0]


def _overlay(base: Any, changes: Any, prefix: str) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _overlay(base[key], value, f"{prefix}{key}.")
        else:
            base[key] = copy.deepcopy(value)
            _take_comment(base, changes, key)


def _take_comment(base: Any, changes: Any, key: Any) -> None:
    """Put the change's own comment on the line of a key, and leave what stands below it."""
    change = changes.ca.items.get(key, [None] * 3)[2] if isinstance(changes, CommentedMap) else None
    comment = change.value.partition("\n")[0] if change is not None else ""
    if not comment:
        return
    current = base.ca.items.get(key, [None] * 3)[2]
    below = current.value.partition("\n")[2] if current is not None else ""
    base.yaml_add_eol_comment(comment, key, column=current.start_mark.column if current is not None else None)
    base.ca.items[key][2].value = f"{comment}\n{below}"


def read(root: Path, name: str) -> params.Params:
    """The parameters of a profile, which need not be the one in use.

    Raises:
        ParamsError: for an unknown profile or an invalid result.
    """
    return params.parse(plain(resolve(root, name)), f"profiles/{name}.yaml")


def resolve(root: Path, name: str) -> Any:
    """The complete tree of a profile: the profile that it extends with its own keys laid over it.

    Raises:
        ParamsError: for an unknown profile, profiles that extend each other, or an invalid result.
    """
    tree = _laid_over(root, name, ())
    params.parse(plain(tree), _file(root, name).relative_to(root).as_posix())
    return tree


def _laid_over(root: Path, name: str, through: tuple[str, ...]) -> Any:
    if name not in (names := available(root)):
        raise ParamsError(f"no profile {name!r} in profiles/; {did_you_mean(name, names)}available: {', '.join(names)}")
    if name in through:
        raise ParamsError(f"profiles/{name}.yaml: extends itself, through {' and '.join(through)}")
    path = _file(root, name)
    changes = document(path)
    params.validate_no_earlier_keys(changes, path.relative_to(root).as_posix())
    if name == BASE:
        return changes
    tree = _laid_over(root, str(changes.pop(EXTENDS, BASE)), (*through, name))
    _overlay(tree, changes, "")
    if changes.ca.comment:
        tree.ca.comment = changes.ca.comment  # the head of the file is the profile's own
    return tree


def document(path: Path) -> Any:
    """A profile with its comments, to be written again."""
    text = params.read_text(path)
    if not isinstance(params.tree_of(text, path), dict):  # and where it is no YAML, one line instead of twenty
        raise ParamsError(f"{path}: expected a mapping of sections")
    return _writer().load(text)


def _writer() -> YAML:
    """Set as DVC's, so that ``dvc exp run -S`` of one value changes its line of the file and no other."""
    yaml = YAML()
    yaml.default_flow_style = False
    return yaml


def _one_item_a_line(tree: Any) -> Any:
    """Lists as DVC writes them, in place; a profile may have them in brackets."""
    for key, value in tree.items():
        if isinstance(value, dict):
            _one_item_a_line(value)
        elif isinstance(value, list):
            tree[key] = plain(value)
    return tree


def plain(tree: Any) -> Any:
    """ruamel's commented containers as plain dicts and lists."""
    if isinstance(tree, dict):
        return {str(k): plain(v) for k, v in tree.items()}
    if isinstance(tree, list):
        return [plain(v) for v in tree]
    return tree


def write_yaml(path: Path, tree: Any) -> None:
    """Write a parameter file as DVC writes it, whole or not at all."""
    with atomic(path) as part, part.open("w", encoding="utf-8") as out:
        _writer().dump(_one_item_a_line(tree), out)


def use(root: Path, name: str) -> str:
    """Write ``params.yaml`` from a profile; returns a line that says what happened.

    Raises:
        ParamsError: for an unknown profile or an invalid result.
    """
    params_file, storybook_file, before = root / params.PARAMS_FILE, root / "profiles" / f"{BASE}.yaml", in_use(root)
    tree = resolve(root, name)
    if name == before == BASE:
        return "params.yaml holds the profile 'storybook'; `git checkout -- params.yaml` undoes what was changed in it"
    replaced = storybook_file if before == BASE else params_file
    mine = _kept_aside(root, replaced, before or "unnamed") if _is_changed(root, replaced, before) else None
    if name == BASE:
        _copy(storybook_file, params_file)
        storybook_file.unlink()
    else:
        if before == BASE:
            _copy(params_file, storybook_file)
        write_yaml(params_file, tree)
    moved = f", what it held is kept as profiles/{BASE}.yaml" if before == BASE else ""
    changed = f"; {replaced.relative_to(root)} was changed, and is kept as {mine}" if mine else ""
    return (
        f"params.yaml now holds the profile {name!r}{moved}{changed}; `paco check` says what it needs, `dvc repro` "
        "runs it"
    )


def _is_changed(root: Path, file: Path, profile: str | None) -> bool:
    """Whether a file that is replaced holds something that no other file holds."""
    if not file.exists():
        return False
    if profile == BASE:
        return file.read_bytes() != (root / params.PARAMS_FILE).read_bytes()
    try:
        return bool(plain(document(file)) != plain(resolve(root, str(profile))))
    except ParamsError:  # it cannot be read, or its profile is gone
        return True


def _kept_aside(root: Path, file: Path, profile: str) -> str:
    """Copy a file that is replaced; where to."""
    folder = root / ASIDE
    folder.mkdir(parents=True, exist_ok=True)
    number = next(n for n in count(1) if not (folder / f"{profile}-{n}.yaml").exists())
    _copy(file, folder / f"{profile}-{number}.yaml")
    return (ASIDE / f"{profile}-{number}.yaml").as_posix()


def _copy(source: Path, target: Path) -> None:
    with atomic(target) as part:
        part.write_bytes(source.read_bytes())
