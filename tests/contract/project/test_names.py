"""Names in the code say what a value is: no filler words, no public name twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import REPOSITORY

ROOTS = ("paco_core", "pipelines", "packages", "zoo", "examples", "speed", "tools", "tests")
# A participle, a pronoun or an adverb does not say what a value is. Write what it is: `rows`, `scores`, `cached_ids`.
FILLERS = """
alike alone asked beside both brought came done drawn each ended found given gone got heard held how kept known
listed made meant more named one others own painted refused remembered rest said same say seen sent shown taken
thing things told took unasked wanted went what when where which who whole
"""
#: Names that the API, a file format, HTTP or a key of params.yaml has.
INTERFACES = {
    "paco_core/api/judge.py": {"painted"},
    "paco_core/api/painter.py": {"named"},
    "paco_core/benchmarks/generated.py": {"when"},
    "paco_core/config/params_losses.py": {"where"},
    "paco_core/data/annotation/answer_file.py": {"shown"},
    "paco_core/data/annotation/queue.py": {"done"},
    "paco_core/data/annotation/store.py": {"shown"},
    "paco_core/operations/play/app.py": {"beside"},
    "paco_core/operations/play/jobs.py": {"DONE", "done"},
    "paco_core/rewards/base.py": {"whole"},
    "paco_core/runtime/provenance/chain.py": {"given"},
    "paco_core/runtime/tracking/delivery.py": {"refused"},
    "paco_core/runtime/tracking/journal.py": {"refused"},
    "paco_core/sampling/generated_image.py": {"when"},
    "paco_core/sampling/generation.py": {"when"},
}


def files() -> list[Path]:
    return [path for root in ROOTS for path in sorted((REPOSITORY / root).rglob("*.py"))]


def declared_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a module gives to a variable, an argument, an attribute, a function, a class or an import."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.alias(asname=str(name)):
                yield name, node.lineno


def test_no_name_is_a_filler_word() -> None:
    words, fillers = set(FILLERS.split()), []
    for path in files():
        relative = str(path.relative_to(REPOSITORY))
        for name, line in declared_names(ast.parse(path.read_text())):
            if name.strip("_").lower() in words and name not in INTERFACES.get(relative, ()):
                fillers.append(f"{relative}:{line}: {name}")
    assert fillers == []


def test_module_docstrings_state_their_thing() -> None:
    questions = ("What ", "How ", "Which ", "Who ", "Where ", "When ")
    docstrings = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in files()}
    assert [str(path) for path, text in docstrings.items() if text.startswith(questions)] == []


def documented_arguments(docstring: str) -> list[str]:
    """The names below ``Args:``, at the smallest indentation there."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", docstring, re.MULTILINE)
    return re.findall(r"^    (\w+): ", section[1], re.MULTILINE) if section else []


def test_docstrings_describe_arguments_that_exist() -> None:
    strangers = []
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                names = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
                for name in documented_arguments(ast.get_docstring(node) or ""):
                    if name not in names:
                        strangers.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}: {name}")
    assert strangers == []


# Hooks have one name in all modules of a kind: `run` and `assist` of a stage, `build` of a reward,
# `votes` of an annotator. Functions in `cli` have the names of their verbs.
HOOKS = {"run", "assist", "build", "votes", "main"}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@pytest.mark.parametrize("roots", [("paco_core", "pipelines"), ("packages/dvc-project", "packages/dagster-dvc")])
def test_no_two_modules_share_a_public_name(roots: tuple[str, ...]) -> None:
    modules: dict[str, list[str]] = {}
    for path in sorted(path for root in roots for path in (REPOSITORY / root).rglob("*.py")):
        if "cli" in path.parts or "tests" in path.parts or "example" in path.parts:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, DEFINITIONS) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(str(path.relative_to(REPOSITORY)))
    assert modules
    assert {name: paths for name, paths in modules.items() if len(paths) > 1 and name not in HOOKS} == {}
