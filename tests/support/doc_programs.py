"""Whether the programs of this environment accept the commands that the documentation shows, without running them."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import logging
import re
import tomllib
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

from tests.support import REPOSITORY

#: Of every system, or of a service's own installation: that they are there, and their options, is not checked.
SYSTEM = {"cd", "cp", "createdb", "curl", "echo", "export", "git", "hf", "jq", "mkdir", "source", "unzip", "xdg-open"}
#: Written for the reader to fill in; the rest of the line is checked.
FILL_IN = re.compile(r"^(\.\.\.|…)$")
#: What may be wrong with a command that the text only mentions: `paco promote`, `paco VERB --help`.
MENTIONED = re.compile(r"arguments are required|expected (one|at least one) argument|invalid choice: '[A-Z]+'|Missing ")


def refusal(words: list[str]) -> str | None:
    """Why a command would be refused before it does anything; None where it would not."""
    program, *arguments = words
    if program in SYSTEM:
        return None
    if program not in CHECKS:
        return f"{program} is no program that the documentation may use; tests/support/doc_programs.py lists them"
    output = io.StringIO()
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        try:
            return CHECKS[program]([word for word in arguments if not FILL_IN.match(word)])
        except SystemExit as error:  # argparse; 0 after --help and --version
            return output.getvalue().strip().splitlines()[-1] if error.code else None


def _paco(arguments: list[str]) -> str | None:
    from paco_core.cli.arguments import parser

    parser().parse_args(arguments)
    return None


@cache
def _stages() -> set[str]:
    """Those of dvc.yaml, and those that docs/contributing/extend.md adds."""
    from dvc_project.project import stages_of

    stages = stages_of(REPOSITORY)
    added = re.findall(r'append-to="dvc.yaml"\n  (\w+):', (REPOSITORY / "docs/contributing/extend.md").read_text())
    return {*added, *stages, *(stage.group for stage in stages.values())}


def _dvc(arguments: list[str]) -> str | None:
    from dvc.cli import DvcParserError
    from dvc.cli.parser import get_main_parser

    output = io.StringIO()
    noted = logging.StreamHandler(output)
    logging.getLogger("dvc.cli.parser").addHandler(noted)  # the error itself says no more than that there is one
    try:
        namespace = get_main_parser().parse_args(arguments)
    except DvcParserError:
        return output.getvalue().strip().splitlines()[-1]
    finally:
        logging.getLogger("dvc.cli.parser").removeHandler(noted)
    if arguments[:1] in (["repro"], ["commit"], ["status"]):
        unknown = [target for target in namespace.targets or () if target not in _stages() and target != "STAGE"]
        return f"dvc.yaml has no stage {unknown[0]}" if unknown else None
    return None


def _clicked(command: Any, name: str, arguments: list[str]) -> str | None:
    """Resolve the command and parse its options, as click does before it calls anything."""
    import click

    try:
        context = command.make_context(name, list(arguments), resilient_parsing=False)
        while isinstance(context.command, click.Group):
            remaining = [*context._protected_args, *context.args]
            called, command, remaining = context.command.resolve_command(context, remaining)
            context = command.make_context(called, remaining, parent=context)
    except click.exceptions.Exit:
        return None
    except click.UsageError as error:
        return error.format_message()
    return None


def _dagster(arguments: list[str]) -> str | None:
    from dagster._cli import create_dagster_cli

    return _clicked(create_dagster_cli(), "dagster", arguments)


def _dg(arguments: list[str]) -> str | None:
    from dagster_dg_cli.cli import create_dg_cli

    return _clicked(create_dg_cli(), "dg", arguments)


def _mlflow(arguments: list[str]) -> str | None:
    from mlflow.cli import cli

    return _clicked(cli, "mlflow", arguments)


def _make(arguments: list[str]) -> str | None:
    rules = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    unknown = [word for word in arguments if "=" not in word and word not in rules]
    return f"the Makefile has no rule {unknown[0]}" if unknown else None


def _install(arguments: list[str]) -> str | None:
    """``pip install``, ``uv pip install``: lock files and extras exist."""
    declared_extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for before, word in pairwise(arguments):
        if before == "-r" and word.startswith("$(python "):
            return _python(word.removeprefix("$(python ").removesuffix(")").split())
        if before == "-r" and word != "FILE" and not (REPOSITORY / word).is_file():
            return f"no file {word}"
        extras = re.fullmatch(r"paco-rl\[(.+)\]", word)
        if extras and not set(extras[1].split(",")) <= set(declared_extras):
            return f"pyproject.toml has no extra {extras[1]}"
    return None


def _python(arguments: list[str]) -> str | None:
    if arguments[:1] == ["-c"]:
        tree = ast.parse(arguments[1])
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    else:
        modules = [word for before, word in pairwise(arguments) if before == "-m"]
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return f"no module {missing[0]}" if missing else None


CHECKS: dict[str, Callable[[list[str]], str | None]] = {
    "dagster": _dagster,
    "dagster-daemon": lambda _: None,
    "dg": _dg,
    "dvc": _dvc,
    "make": _make,
    "mlflow": _mlflow,
    "paco": _paco,
    "pip": _install,
    "python": _python,
    "uv": _install,
}
