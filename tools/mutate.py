"""Mutation testing: change one operator or number of a formula, and see whether its tests notice.

For example, `python tools/mutate.py --each 5` changes five places of each module in :data:`MODULES`, one at a time,
in a copy of the tree. After each change it runs the unit tests that import the module. A mutation survives if they all
pass. The places are drawn by ``--seed``. `python tools/mutate.py grpo/losses --each 1000` tries all of one module.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paco_core.io.numbers import whole_number

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    "benchmarks/paired_changes", "benchmarks/ranking_metrics", "benchmarks/statistics", "data/annotation/rankings",
    "data/pairs/leakage", "data/pairs/pairs", "grpo/advantages", "grpo/dynamics", "grpo/hacking", "grpo/losses",
    "grpo/objectives", "reward_model/loss", "reward_model/yes_probability", "rewards/aggregation", "training/ema",
)  # fmt: skip

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
FUNCTIONS = {"min": "max", "minimum": "maximum", "mean": "sum", "any": "all", "isnan": "isfinite", "exp": "abs"}
FUNCTIONS |= {new: old for old, new in FUNCTIONS.items() if new not in ("sum", "isfinite", "abs")}
SKIPPED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.AnnAssign, ast.Import, ast.ImportFrom, ast.arguments)


@dataclass(frozen=True)
class Mutation:
    """One changed module: its ``source``, and the changed line before and after."""

    module: str
    line: int
    before: str
    after: str
    source: str


def mutations_of(module: str, path: Path) -> list[Mutation]:
    """All mutations of a module, in the order of its text."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    mutations = []
    for statement, line in _mutated(tree):
        source = ast.unparse(tree)
        mutations.append(Mutation(module, line, text.splitlines()[line - 1].strip(), ast.unparse(statement), source))
    return mutations


def _mutated(tree: ast.Module) -> Iterator[tuple[ast.AST, int]]:
    """Change the tree at one place after another, and undo the change when the caller has looked at it."""
    for node in _formulas(tree):
        if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATORS:
            operator, node.op = node.op, OPERATORS[type(node.op)]()  # type: ignore[assignment]
            yield node, node.lineno
            node.op = operator  # type: ignore[assignment]
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
            first = node.ops[0]
            node.ops[0] = OPERATORS[type(first)]()  # type: ignore[call-overload]
            yield node, node.lineno
            node.ops[0] = first
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            sign, node.op = node.op, ast.UAdd()
            yield node, node.lineno
            node.op = sign
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            number = node.value
            node.value = number + 1 if isinstance(number, int) else number * 2 or 1.0  # type: ignore[operator]
            yield node, node.lineno
            node.value = number
        elif isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
            attribute, node.attr = node.attr, FUNCTIONS[node.attr]
            yield node, node.lineno
            node.attr = attribute
        elif isinstance(node, ast.Name) and node.id in ("min", "max", "any", "all"):
            name, node.id = node.id, FUNCTIONS[node.id]
            yield node, node.lineno
            node.id = name


def _formulas(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes inside functions, without messages, annotations and defaults."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield from (inner for statement in node.body for inner in _below(statement))


def _below(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (*SKIPPED, ast.FunctionDef)):  # a nested function is walked as any other
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _below(child)


def tests_of(module: str) -> list[str]:
    """The unit tests that import a module, those of its own package if there are any; first the one named like it."""
    package, name = module.replace("/", ".").rpartition(".")[::2]
    imports = re.compile(rf"from paco_core\.{package}\.{name} import|from paco_core\.{package} import .*\b{name}\b")
    paths = [path for path in sorted((ROOT / "tests/unit").rglob("test_*.py")) if imports.search(path.read_text())]
    near = [path for path in paths if path.parent.name == package.partition(".")[0]]
    return [str(path.relative_to(ROOT)) for path in sorted(near or paths, key=lambda path: name not in path.stem)]


def passes(tree: Path, tests: list[str], limit_s: float | None = None) -> bool:
    """Whether the tests pass in a copy of the tree; a run that takes longer than ``limit_s`` fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return not subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=limit_s).returncode
    except subprocess.TimeoutExpired:
        return False


def run(tree: Path, module: str, mutations: list[Mutation]) -> list[Mutation]:
    """Try mutations of a module in a copy of the tree; returns those that survive.

    Raises:
        SystemExit: when no test imports the module, or when its tests fail without a mutation.
    """
    path, tests = tree / "paco_core" / f"{module}.py", tests_of(module)
    original, start = path.read_text(encoding="utf-8"), time.monotonic()
    if not tests or not passes(tree, tests):
        sys.exit(f"{module}: its tests must exist and pass before it is changed: {tests}")
    limit_s, survivors = 3 * (time.monotonic() - start) + 30, []
    try:
        for mutation in mutations:
            path.write_text(mutation.source, encoding="utf-8")
            if passes(tree, tests, limit_s):
                survivors.append(mutation)
                print(f"  survived {module}.py:{mutation.line}: {mutation.before} -> {mutation.after}", flush=True)
    finally:
        path.write_text(original, encoding="utf-8")
    print(f"{module}: {len(mutations) - len(survivors)} of {len(mutations)} killed", flush=True)
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(description="Change formulas one place at a time and run their tests.")
    parser.add_argument("modules", nargs="*", default=MODULES, help=f"for example {MODULES[0]}; all by default")
    parser.add_argument("--each", type=whole_number(1), default=5, help="mutations per module (default 5)")
    parser.add_argument("--seed", type=whole_number(0), default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in files.splitlines():
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
        tried, survivors = 0, 0
        for module in arguments.modules:
            mutations = mutations_of(module, ROOT / "paco_core" / f"{module}.py")
            chosen = random.Random(f"{arguments.seed} {module}").sample(mutations, min(arguments.each, len(mutations)))
            tried, survivors = tried + len(chosen), survivors + len(run(tree, module, chosen))
    print(f"{tried - survivors} of {tried} mutations killed ({100 * (tried - survivors) / max(tried, 1):.0f}%)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
