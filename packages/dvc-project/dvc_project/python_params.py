"""Parameters in a Python file, as DVC reads them: constants at the top, in classes, and of ``self`` in ``__init__``.

Nothing is run: the file is only parsed. What is no constant, such as a call, is no parameter.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any


def python_params(text: str) -> dict[str, Any]:
    """The constants of a file by name; those of a class are a mapping under its name.

    Raises:
        SyntaxError: when it is no Python.
    """
    return _constants(ast.parse(text).body)


def _constants(body: Sequence[ast.stmt], of_self: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            found[statement.name] = _constants(statement.body)
        elif isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            found |= _constants(statement.body, of_self=True)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            name = _name(targets[0], of_self) if len(targets) == 1 else None
            if name is not None and statement.value is not None:
                try:
                    found[name] = _plain(ast.literal_eval(statement.value))
                except ValueError:
                    continue
    return found


def _plain(value: Any) -> Any:
    """A tuple is recorded as a list."""
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def _name(target: ast.expr, of_self: bool) -> str | None:
    if isinstance(target, ast.Name) and not of_self:
        return target.id
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return target.attr
    return None
