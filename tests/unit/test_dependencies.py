"""Silent staleness is DVC's best-known trap: code that a stage runs but does not depend on."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
STAGES: dict[str, Any] = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]

#: How a stage is started, tells its progress and is tracked: none of it changes what comes out.
INFRASTRUCTURE = {
    "paco_core/__init__.py",
    "paco_core/cli.py",
    "paco_core/context.py",
    "paco_core/checks.py",
    "paco_core/imports.py",
    "paco_core/launch.py",
    "paco_core/params.py",
    "paco_core/params_base.py",
    "paco_core/params_policies.py",
    "paco_core/paths.py",
    "paco_core/progress.py",
    "paco_core/stage_lock.py",
    "paco_core/telling.py",
}
INFRASTRUCTURE_ROOMS = ("paco_core/tracking/", "paco_core/launchers/")


def module_file(module: str) -> Path | None:
    path = REPOSITORY / module.replace(".", "/")
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


@cache
def imports(file: Path) -> frozenset[Path]:
    """Files of this project that a file imports at run time, late imports included, typing-only ones not."""
    found: set[Path] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value.split(":")[0]]  # modules named in registries and commands
        for name in names:
            if name.startswith("paco_core.") and (target := module_file(name)):
                found.add(target)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(file.read_text()))
    return frozenset(found)


def closure(stage: str) -> set[str]:
    todo, seen = [REPOSITORY / f"paco_core/stages/{stage}.py"], set()
    while todo:
        file = todo.pop()
        name = file.relative_to(REPOSITORY).as_posix()
        if file in seen or name in INFRASTRUCTURE or name.startswith(INFRASTRUCTURE_ROOMS):
            continue
        seen.add(file)
        todo += imports(file)
    empty = {f for f in seen if f.name == "__init__.py" and not f.read_text().strip()}
    return {file.relative_to(REPOSITORY).as_posix() for file in seen - empty}


def deps(stage: str) -> list[str]:
    return [str(next(iter(dep)) if isinstance(dep, dict) else dep) for dep in STAGES[stage]["deps"]]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_all_the_code_that_it_runs(stage: str) -> None:
    declared = deps(stage)
    missing = {f for f in closure(stage) if not any(f == d or f.startswith(d + "/") for d in declared)}
    assert not missing, f"add to the deps of {stage} in dvc.yaml: {sorted(missing)}"


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_depends_on_no_code_that_it_does_not_run(stage: str) -> None:
    run = closure(stage)
    code = [dep for dep in deps(stage) if dep.startswith("paco_core")]
    idle = [dep for dep in code if not any(f == dep or f.startswith(dep + "/") for f in run)]
    assert not idle, f"remove from the deps of {stage} in dvc.yaml: {idle}"


def test_every_stage_has_its_file_and_every_file_its_stage() -> None:
    files = {path.stem for path in (REPOSITORY / "paco_core/stages").glob("*.py")} - {"__init__"}
    assert files == set(STAGES)


def test_the_report_logs_every_out_that_it_depends_on() -> None:
    from paco_core.stages.report import INPUTS

    assert [path.as_posix() for path in INPUTS] == [dep for dep in deps("report") if dep.startswith("data/")]


def test_every_dep_exists_or_is_made_by_a_stage() -> None:
    outs = [str(next(iter(o)) if isinstance(o, dict) else o) for s in STAGES.values() for o in s.get("outs", [])]
    for stage in STAGES:
        for dep in deps(stage):
            made = any(out == dep or out.startswith(dep + "/") for out in outs)
            assert made or (REPOSITORY / dep).exists(), f"{stage}: {dep}"


def test_every_recipe_is_trained_and_its_model_is_an_input() -> None:
    from paco_core import params
    from paco_core.policies.base import recipes_that_edit

    policies = params.load(REPOSITORY / params.PARAMS_FILE).policies
    assert STAGES["policies"]["matrix"]["policy"] == list(policies.recipes)
    for benchmark, edit in (("t2is", False), ("gedit", True)):
        models = {recipe.model for recipe in recipes_that_edit(policies, edit=edit).values()}
        assert models <= set(deps("policies")) & set(deps(benchmark))


def test_the_page_shows_the_graph_as_declared() -> None:
    page = (REPOSITORY / "docs/reference/graph.md").read_text()
    told = subprocess.run(
        [sys.executable, "-m", "paco_core", "graph"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert told.startswith("flowchart") and told in page, "paste what `paco graph` prints into docs/reference/graph.md"
