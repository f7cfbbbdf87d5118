"""Every number that a command line of the project takes has bounds."""

from __future__ import annotations

import argparse
import ast
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

ROOMS = ("packages", "paco_core", "pipelines", "speed", "tools", "zoo")
BEYOND = (str(10**30), str(-(10**30)), "nan", "inf", "-inf")


def programs(repository: Path) -> list[Path]:
    """The files that make a parser and can be run."""
    files = (path for room in ROOMS for path in sorted((repository / room).rglob("*.py")) if "tests" not in path.parts)
    paths = [path for path in files if "__main__" in path.read_text()]
    return [path for path in paths if makes_parser(path)] + [repository / "paco_core/__main__.py"]


def makes_parser(path: Path) -> bool:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in ("ArgumentParser", "parser") for call in calls)


class ParserFound(BaseException):
    """Ends a program with its parser."""


def parser_of(path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    def raise_parser(self: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        raise ParserFound(self)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_known_args", raise_parser)  # which every way of parsing calls
    monkeypatch.setattr(sys, "argv", [str(path)])
    module = ".".join(path.relative_to(repository).with_suffix("").parts)
    with warnings.catch_warnings(), pytest.raises(ParserFound) as exit_info:
        warnings.simplefilter("ignore")  # a module that is imported already
        runpy.run_module(module, run_name="__main__")
    (parser,) = exit_info.value.args
    return parser  # type: ignore[no-any-return]


def numeric(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from numeric(inner)
        elif callable(action.type) and is_number(action.type):
            yield action


def is_number(read: Any) -> bool:
    try:
        return isinstance(read("1"), int | float)
    except (ValueError, argparse.ArgumentTypeError):
        return False


def test_every_number_of_every_command_line_has_bounds(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.syspath_prepend(str(repository))
    options = 0
    for path in programs(repository):
        parser = parser_of(path, repository, monkeypatch)
        for action in numeric(parser):
            options += 1
            name = argparse._get_action_name(action)
            for text in BEYOND:
                with pytest.raises(argparse.ArgumentError) as error_info:
                    parser._get_value(action, text)
                message = str(error_info.value)
                assert name and name in message and text in message and "\n" not in message, (
                    f"{path}: {name} {text}: {message}"
                )
    assert options > 25, "the parsers are found"
