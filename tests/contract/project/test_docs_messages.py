"""docs/how-to/troubleshooting.md quotes messages that the code still has."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.support import REPOSITORY

PAGE = REPOSITORY / "docs/how-to/troubleshooting.md"
#: ``### `MESSAGE` ``, or ``### DVC: `MESSAGE` `` for one of a library; … stands for what differs each time.
QUOTED = re.compile(r"^### (?:(\w+): )?`(.+)`$", re.MULTILINE)
ANYTHING = "…"
FORMAT = re.compile(r"%(?:\.\d)?[dfs]")


def quoted() -> list[tuple[str, str]]:
    return QUOTED.findall(PAGE.read_text())


def templates(files: Iterable[Path]) -> list[str]:
    """Every text of these files, with … for what is put in, on one line."""
    texts = []
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else ANYTHING for part in node.values)
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(FORMAT.sub(ANYTHING, node.value))
    return [" ".join(text.split()) for text in texts]


@cache
def ours() -> list[str]:
    rooms = ("packages", "paco_core", "pipelines", "tools", "zoo")
    return templates(file for room in rooms for file in sorted((REPOSITORY / room).rglob("*.py")))


@cache
def theirs(library: str) -> list[str]:
    spec = importlib.util.find_spec(library.lower())
    assert spec is not None and spec.origin is not None
    return templates(sorted(Path(spec.origin).parent.rglob("*.py")))


def says(template: str, message: str) -> bool:
    """The words of the message stand in the template, in this order; what is put in may stand for any of them."""
    words = [part.strip() for part in message.split(ANYTHING) if part.strip(" :;,.`()")]
    return re.search(".*".join(map(re.escape, words)), template) is not None


@pytest.mark.parametrize(("library", "message"), quoted())
def test_a_quoted_message_is_one_of_the_code(library: str, message: str) -> None:
    letters = sum(map(str.isalpha, message))
    assert letters >= 8, "too short to be looked up"
    assert any(says(template, message) for template in (theirs(library) if library else ours()))


def test_the_page_quotes_many_and_each_once() -> None:
    messages = [message for _, message in quoted()]
    assert len(messages) == len(set(messages)) > 35
    assert len(re.findall(r"^### ", PAGE.read_text(), re.MULTILINE)) == len(messages), "a heading without a message"
