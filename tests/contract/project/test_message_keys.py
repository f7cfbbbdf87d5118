"""Keys of ``params.yaml`` in messages of the library: each exists, so a reader can follow the remedy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.contract.project.test_docs_keys import FILES, SCHEMA, SECTIONS, TAGS, exists
from tests.support import REPOSITORY

SOURCES = [
    file for folder in ("paco_core", "pipelines", "packages") for file in sorted((REPOSITORY / folder).rglob("*.py"))
]
KEY = re.compile(r"(?<![\w./@-])([a-z]\w*(?:\.(?:[a-z]\w*|\*|<\w+>))+)")
METRICS = {"consistency_rank.comparisons.reward"}  # the first part of a metric's name


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each sentence in a module, without docstrings. ``*`` takes the place of an inserted value."""
    skipped = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))  # a docstring
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = [str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def test_every_key_in_a_message_exists() -> None:
    keys, wrong = set[str](), list[str]()
    for file in SOURCES:
        for line, text in messages(ast.parse(file.read_text())):
            for key in KEY.findall(text) if " " in text else ():
                if key.split(".")[0] in SECTIONS and not key.endswith(FILES) and key not in TAGS | METRICS:
                    keys.add(key)
                    if not exists(key.partition(".*")[0].split("."), SCHEMA):
                        wrong.append(f"{file.relative_to(REPOSITORY)}:{line}: {key}")
    assert wrong == [] and len(keys) > 50
