"""Files of parameters and of DVC, each read as DVC reads it."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvc_project.errors import DvcProjectError, MergeConflictError
from dvc_project.yaml import parse_yaml


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


def _python_params(text: str) -> dict[str, Any]:
    """Parameters of a Python file, as DVC reads them.

    These are constants at the top of the file, in classes, and of ``self`` in ``__init__``. The file is
    parsed and not run. A value that is no constant, such as a call, is no parameter.

    Raises:
        SyntaxError: when it is no Python.
    """
    return _constants(ast.parse(text).body)


def _constants(body: Sequence[ast.stmt], of_self: bool = False) -> dict[str, Any]:
    constants: dict[str, Any] = {}
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            constants[statement.name] = _constants(statement.body)
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            constants |= _constants(statement.body, of_self=True)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            name = _name(targets[0], of_self) if len(targets) == 1 else None
            if name is not None and statement.value is not None:
                try:
                    constants[name] = _plain(ast.literal_eval(statement.value))
                except ValueError:
                    continue
    return constants


def _plain(value: Any) -> Any:
    """A tuple is recorded as a list."""
    if isinstance(value, tuple | list):
        return [_plain(element) for element in value]
    return {key: _plain(element) for key, element in value.items()} if isinstance(value, dict) else value


def _name(target: ast.expr, of_self: bool) -> str | None:
    if isinstance(target, ast.Name) and not of_self:
        return target.id
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr
    return None


#: By suffix, in whatever case; every other file is YAML.
_KINDS: Mapping[str, Callable[[str], Any]] = {".json": json.loads, ".toml": tomllib.loads, ".py": _python_params}
