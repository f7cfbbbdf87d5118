"""What one Python file says, apart from how it is written down: a digest of its code, and the modules it needs.

Comments, docstrings and layout change nothing that a program computes, so they are no part of the digest; nor is what a
stage's file declares of the stage.
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
from paco_core.io.messages import kept_if_possible

#: ``package.module`` or ``package.module:name``, as registries and command lines name code.
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")
FORMAT = 4  # of the file that keeps readings
DECLARATION = "STAGE"  # paco_core/runtime/stage.py
_PARSING = Lock()  # Python 3.11 counts the depth of trees for all threads together, and fails where two parse at once
_FILE_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")


@dataclass(frozen=True)
class Source:
    """One file's code.

    ``digest`` is empty where there is no code. ``imports`` are dotted names that may be modules (of ``from a import b``
    both ``a`` and ``a.b``), late imports included, those for type checkers only not; ``named`` are texts that may name
    a module of the project, as in a command line. ``registries`` are tables of name -> "module:what", from literals
    such as ``{"jpeg": "paco_core.rewards.jpeg:build"}``; they are left out of the digest, for their entries count
    one by one. ``beside`` are texts that may name a file or folder beside it.
    """

    digest: str
    imports: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    registries: tuple[dict[str, str], ...] = ()
    beside: tuple[str, ...] = ()


def read(data: bytes, name: str, package: str = "") -> Source:
    """Read a file's bytes; ``package`` is the one that its relative imports start from.

    Raises:
        DataError: when it is no Python; names the file by ``name``.
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
        tuple(sorted(reader.named)),
        tuple(reader.registries),
        tuple(sorted(reader.beside)),
    )


def _without_declaration(body: list[ast.stmt]) -> list[ast.stmt]:
    """A stage's file without what it says of itself (``STAGE = ...``) and what only that needs: a new headline, or
    another estimate, changes nothing that the stage computes."""
    declaration = next((node for node in body if _binds(node) == {DECLARATION}), None)
    if declaration is None:
        return body
    others = [node for node in body if node is not declaration]
    declared = _needed_by([declaration], others)
    counted = _needed_by([node for node in others if node not in declared], others)
    return [node for node in others if node not in declared or node in counted]


def _needed_by(roots: list[ast.stmt], body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements of a file that bind what the roots name, and what these name in turn."""
    found: list[ast.stmt] = []
    todo = list(roots)
    while todo:
        names = {part.id for part in ast.walk(todo.pop()) if isinstance(part, ast.Name)}
        new = [node for node in body if node not in found and node not in roots and names & _binds(node)]
        found += new
        todo += new
    return found


def _binds(node: ast.stmt) -> set[str]:
    """Names that a statement of a file's top level gives a meaning."""
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
        self.named: set[str] = set()
        self.registries: list[dict[str, str]] = []
        self.beside: set[str] = set()

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
            self.named.add(node.value.partition(":")[0])
        if isinstance(node.value, str) and _FILE_NAME.fullmatch(node.value):
            self.beside.add(node.value)


def _text(node: ast.AST | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _registry(node: object) -> dict[str, str]:
    """Name -> "module:what" of a literal that says nothing else; empty for any other.

    A value may be a call whose first argument is that text; what else it says stands behind a comma.
    """
    if not isinstance(node, ast.Dict):
        return {}
    pairs = [(_text(key), _entry(value)) for key, value in zip(node.keys, node.values, strict=True)]
    found = all(name and ":" in where and _DOTTED.fullmatch(where.partition(", ")[0]) for name, where in pairs)
    return dict(pairs) if found else {}


def _entry(node: ast.AST) -> str:
    if not isinstance(node, ast.Call) or not node.args:
        return _text(node)
    more = [*map(ast.unparse, node.args[1:]), *map(ast.unparse, node.keywords)]
    return ", ".join([_text(node.args[0]), *more])


def _is_text(node: object) -> bool:
    """A text that stands alone: a docstring, or a comment in quotes."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _canonical(node: object) -> Iterator[str]:
    """The tree as words. Empty fields are left out: newer versions of Python know more of them."""
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
    """:func:`read` by the bytes of a file; with ``path`` None nothing is kept on disk."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[str, Source] = self._load()
        self._used: dict[str, Source] = {}
        self._files: dict[Path, Source] = {}

    def read(self, file: Path, package: str) -> Source:
        """The code of a file.

        Raises:
            DataError: when it is no Python.
        """
        if file not in self._files:
            data = file.read_bytes()
            key = reading_key(data, package)
            self._used[key] = self._known.get(key) or read(data, str(file), package)
            self._files[file] = self._used[key]
        return self._files[file]

    def save(self) -> None:
        """Keep what was read since the start. A cache that cannot be written costs time, nothing else."""
        if self.path is None or self._used.keys() <= self._known.keys():
            return
        self._known |= self._used
        tree = {"made_by": _maker(), "sources": {key: asdict(found) for key, found in self._used.items()}}
        with kept_if_possible("readings of the project's code"):
            files.write_text(self.path, json.dumps(tree))

    def _load(self) -> dict[str, Source]:
        try:
            tree = json.loads(self.path.read_text(encoding="utf-8")) if self.path else {}
            if tree.get("made_by") != _maker():
                return {}
            return {key: _source(given) for key, given in tree["sources"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing, or cut off: it is made again
            return {}


def reading_key(data: bytes, package: str) -> str:
    """What a reading depends on: a file's bytes, and the package that its relative imports start from. The file that
    keeps readings holds who read (:func:`_maker`); where the source lies changes no more than the text of an error."""
    return f"{package} {hashlib.sha256(data).hexdigest()[:32]}"


def _source(tree: dict[str, Any]) -> Source:
    imports, named, beside = tuple(tree["imports"]), tuple(tree["named"]), tuple(tree["beside"])
    return Source(str(tree["digest"]), imports, named, tuple(dict(table) for table in tree["registries"]), beside)


def _maker() -> list[object]:
    """What another reading would come from: this format, and the parser of this Python."""
    return [FORMAT, bytes_digest(Path(__file__)), *sys.version_info[:2]]
