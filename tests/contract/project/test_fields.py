"""No object gains fields after construction: a reader finds them all where it is made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support import REPOSITORY

ROOMS = ("paco_core", "pipelines", "packages", "zoo", "speed", "examples")
THEIRS = {"close_connection"}  # of the standard library's request handler
MADE_IN = {"__init__", "__post_init__", "__new__"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def classes() -> dict[str, list[tuple[Path, ast.ClassDef]]]:
    found: dict[str, list[tuple[Path, ast.ClassDef]]] = {}
    for path in sorted(path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append((path, node))
    return found


CLASSES = classes()


def stored(function: Function) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def fields(made: ast.ClassDef) -> set[str]:
    """What a class declares or gives an object when it makes it, and its bases in this project."""
    found: set[str] = set()
    for node in made.body:
        if isinstance(node, ast.AnnAssign):
            found.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(target) for target in node.targets}
        elif isinstance(node, Function):
            found |= {*stored(node)} if node.name in MADE_IN else {node.name}  # a property may have a setter
    for base in made.bases:
        for _, declared in CLASSES.get(ast.unparse(base).partition("[")[0].rpartition(".")[2], []):
            found |= fields(declared)
    return found


def test_no_field_appears_later() -> None:
    late = [
        f"{path.relative_to(REPOSITORY)}: {name}.{node.name} adds {field}"
        for name, places in CLASSES.items()
        for path, made in places
        for node in made.body
        if isinstance(node, Function) and node.name not in MADE_IN
        for field in stored(node)
        if field not in fields(made) | THEIRS
    ]
    assert CLASSES
    assert late == []
