"""Source files: a digest of the code of a Python file, and the modules that it needs.

Comments, docstrings and layout do not change what a program computes, so they are not part of the digest. The
declaration of a stage (``STAGE``) is not part of it either.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from paco_core.io import files
from paco_core.io.files import DataError
from paco_core.io.messages import ignore_write_errors

#: ``package.module`` or ``package.module:name``, as registries and command lines name code.
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")
FORMAT = 5  # of the cache file
DECLARATION = "STAGE"  # paco_core/runtime/stage.py
_PARSING = Lock()  # Python 3.11 has one depth counter for all threads, and fails if two threads parse at the same time
_FILE_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")


@dataclass(frozen=True)
class Source:
    """The code of one file.

    Attributes:
        digest: of the code; empty if the file contains none.
        imports: dotted names that may be modules. ``from a import b`` adds ``a`` and ``a.b``. Imports inside functions
            are included, imports for type checkers only are not.
        module_names: strings that may name a module of the project, for example in a command line.
        registries: name -> "module:function", from literals such as ``{"jpeg": "paco_core.rewards.jpeg:build"}``. They
            are not part of the digest, because each entry counts separately.
        file_names: strings that may name a file or a folder next to this file.
    """

    digest: str
    imports: tuple[str, ...] = ()
    module_names: tuple[str, ...] = ()
    registries: tuple[dict[str, str], ...] = ()
    file_names: tuple[str, ...] = ()


def parse_source(data: bytes, name: str, package: str = "") -> Source:
    """Parse the bytes of a file.

    Args:
        name: of the file, for error messages.
        package: the package that relative imports start from.

    Raises:
        DataError: when the file is not valid Python.
    """
    try:
        with _PARSING:
            tree = ast.parse(data)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        raise DataError(f"{name}{f':{line}' if line else ''}: not valid Python ({error})") from None
    tree.body = _without_declaration(tree.body)
    reader = _Reader(package)
    reader.visit(tree)
    text = " ".join(_canonical(tree.body))
    return Source(
        hashlib.sha256(text.encode()).hexdigest()[:16] if text else "",
        tuple(sorted(reader.imports)),
        tuple(sorted(reader.module_names)),
        tuple(reader.registries),
        tuple(sorted(reader.file_names)),
    )


def _without_declaration(body: list[ast.stmt]) -> list[ast.stmt]:
    """The body of a stage's file without its declaration (``STAGE = ...``) and the code that only the declaration uses.

    A new headline or another estimate does not change what the stage computes.
    """
    declaration = next((node for node in body if _binds(node) == {DECLARATION}), None)
    if declaration is None:
        return body
    remaining = [node for node in body if node is not declaration]
    declared = _needed_by([declaration], remaining)
    counted = _needed_by([node for node in remaining if node not in declared], remaining)
    return [node for node in remaining if node not in declared or node in counted]


def _needed_by(roots: list[ast.stmt], body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that define names which ``roots`` use, and those that these statements use in turn."""
    needed: list[ast.stmt] = []
    todo = list(roots)
    while todo:
        names = {part.id for part in ast.walk(todo.pop()) if isinstance(part, ast.Name)}
        new = [node for node in body if node not in needed and node not in roots and names & _binds(node)]
        needed += new
        todo += new
    return needed


def _binds(node: ast.stmt) -> set[str]:
    """The names that a top-level statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
    parts = (part for target in targets for part in ast.walk(target))
    return {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


class _Reader(ast.NodeVisitor):
    def __init__(self, package: str) -> None:
        self.package = package.split(".") if package else []
        self.imports: set[str] = set()
        self.module_names: set[str] = set()
        self.registries: list[dict[str, str]] = []
        self.file_names: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        self.imports.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        above = self.package[: len(self.package) - node.level + 1] if node.level else []
        module = ".".join([*above, *([node.module] if node.module else [])])
        self.imports.update([module, *(f"{module}.{alias.name}" for alias in node.names)])

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node.test)}:
            for statement in node.orelse:
                self.visit(statement)
        else:
            self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        if table := _registry(node):
            self.registries.append(table)
        else:
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and _DOTTED.fullmatch(node.value) and ("." in node.value or ":" in node.value):
            self.module_names.add(node.value.partition(":")[0])
        if isinstance(node.value, str) and _FILE_NAME.fullmatch(node.value):
            self.file_names.add(node.value)


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _registry(node: object) -> dict[str, str]:
    """Name -> "module:function" of a literal that contains nothing else; empty for any other literal.

    A value may be a call whose first argument is that text. Its other arguments follow after a comma.
    """
    if not isinstance(node, ast.Dict):
        return {}
    pairs = [(_text(key), _entry(value)) for key, value in zip(node.keys, node.values, strict=True)]
    is_registry = all(name and ":" in target and _DOTTED.fullmatch(target.partition(", ")[0]) for name, target in pairs)
    return dict(pairs) if is_registry else {}


def _entry(node: ast.AST) -> str:
    if not isinstance(node, ast.Call) or not node.args:
        return _text(node)
    options = [*map(ast.unparse, node.args[1:]), *map(ast.unparse, node.keywords)]
    return ", ".join([_text(node.args[0]), *options])


def _is_text(node: object) -> bool:
    """Whether a statement is only a string: a docstring, or a comment in quotes."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _canonical(node: object) -> Iterator[str]:
    """The tree as words, without empty fields: newer versions of Python have more of them."""
    if _registry(node):
        yield "(registry)"
    elif isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if value is not None and value != []:
                yield name
                yield from _canonical(value)
        yield ")"
    elif isinstance(node, list):
        for part in node:
            if not _is_text(part):
                yield from _canonical(part)
    else:
        yield repr(node)


def bytes_digest(path: Path) -> str:
    """Digest of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


class SourceCache:
    """Cache of :func:`parse_source` by the bytes of a file.

    Args:
        path: the cache file; None = cache in memory only.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._stored: dict[str, Source] = self._load()
        self._used: dict[str, Source] = {}
        self._files: dict[Path, Source] = {}

    def read(self, file: Path, package: str) -> Source:
        """The code of a file.

        Raises:
            DataError: when the file is not valid Python.
        """
        if file not in self._files:
            data = file.read_bytes()
            key = reading_key(data, package)
            self._used[key] = self._stored.get(key) or parse_source(data, str(file), package)
            self._files[file] = self._used[key]
        return self._files[file]

    def save(self) -> None:
        """Write the entries that this process used. A cache that cannot be written only costs time."""
        if self.path is None or self._used.keys() <= self._stored.keys():
            return
        self._stored |= self._used
        tree = {"made_by": _maker(), "sources": {key: asdict(source) for key, source in self._used.items()}}
        with ignore_write_errors("readings of the project's code"):
            files.write_text(self.path, json.dumps(tree))

    def _load(self) -> dict[str, Source]:
        try:
            tree = json.loads(self.path.read_text(encoding="utf-8")) if self.path else {}
            if tree.get("made_by") != _maker():
                return {}
            return {key: _source(entry) for key, entry in tree["sources"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing or truncated: start empty
            return {}


def reading_key(data: bytes, package: str) -> str:
    """The cache key of a file: its bytes, and the package that its relative imports start from.

    The path of the file is not part of the key, because it only changes error messages.
    """
    return f"{package} {hashlib.sha256(data).hexdigest()[:32]}"


def _source(tree: dict[str, Any]) -> Source:
    return Source(
        str(tree["digest"]),
        tuple(tree["imports"]),
        tuple(tree["module_names"]),
        tuple(dict(table) for table in tree["registries"]),
        tuple(tree["file_names"]),
    )


def _maker() -> list[object]:
    """The version of the reader: the format of the cache, this file, and the version of Python's parser."""
    return [FORMAT, bytes_digest(Path(__file__)), *sys.version_info[:2]]
