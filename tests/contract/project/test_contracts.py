"""Each contract of import-linter refuses what it is there for, in a copy of the tree that breaks it.

A contract that names a room that has moved, or allows more than it says, is kept for ever and nobody notices.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support import REPOSITORY

PACKAGES = {
    "dagster_dvc": "packages/dagster-dvc",
    "dvc_project": "packages/dvc-project",
    "paco_core": ".",
    "paco_pipelines": "pipelines",
    "zoo": ".",
}
#: By contract: what each file imports that it may not, as "importing module -> imported module".
FORBIDDEN = {
    "rooms of paco_core import downwards only, and every room is named": [
        "paco_core.io.atomic -> paco_core.config",
        "paco_core.config.params -> paco_core.runtime",
        "paco_core.policies.base -> paco_core.rewards.base",
        "paco_core.rewards.base -> paco_core.policies.base",
        "paco_core.stages -> paco_core.cli",
    ],
    "rooms of paco_pipelines import downwards only, and every room is named": [
        "paco_pipelines.webserver -> paco_pipelines.defs",
        "paco_pipelines.defs -> paco_pipelines.definitions",
    ],
    "no circle, of packages or of files": ["dvc_project.md5s -> dvc_project.hashing"],
    "the library knows neither Dagster nor DVC": [
        "paco_core.io.atomic -> dagster",
        "paco_core.stages -> dagster_dvc",
        "paco_core.runtime.stage -> dvc",
        "paco_core.cli -> paco_pipelines",
    ],
    "the library loads the small weights, and how they are trained stays outside it": [
        "paco_core.storybook.world -> zoo",
        "paco_pipelines.defs -> zoo",
        "dvc_project.paths -> zoo",
        "dagster_dvc -> zoo",
    ],
    "Dagster calls the library, not its commands": ["paco_pipelines.defs -> paco_core.cli"],
    "what makes data and trains imports no benchmark; painting, which they share, lies below": [
        "paco_core.data -> paco_core.benchmarks",
        "paco_core.grpo.dynamics -> paco_core.benchmarks",
        "paco_core.painting.paint -> paco_core.benchmarks",
        "paco_core.stages.policies -> paco_core.benchmarks",
        "paco_core.stages.reward_lora -> paco_core.benchmarks",
    ],
    "neither the trainer nor the reward model knows the embedded world": [
        "paco_core.grpo.dynamics -> paco_core.storybook",
        "paco_core.reward_model.loss -> paco_core.storybook",
        "paco_core.rewards.base -> paco_core.storybook",
        "paco_core.policies.base -> paco_core.storybook",
        "paco_core.serving.client -> paco_core.storybook",
    ],
    "a DVC project is read without DVC, Dagster and the library": [
        "dvc_project.paths -> dvc",
        "dvc_project.hashing -> dagster",
        "dvc_project.md5s -> dagster_dvc",
        "dvc_project.paths -> paco_core",
        "dvc_project.hashing -> paco_pipelines",
        "dvc_project.md5s -> torch",
    ],
    "the DVC library of Dagster stands alone": [
        "dagster_dvc -> paco_core",
        "dagster_dvc -> paco_pipelines",
        "dagster_dvc -> torch",
    ],
}


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """In a wide terminal, so that no name of a contract is broken into lines; files that did not change are cached."""
    command = [Path(sys.executable).with_name("lint-imports"), "--cache-dir", tree.parent / "cache"]
    paths = os.pathsep.join(str(tree / folder) for folder in dict.fromkeys(PACKAGES.values()))
    environment = os.environ | {"PYTHONPATH": paths, "COLUMNS": "400"}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)


def verdicts(printed: str) -> dict[str, str]:
    """KEPT or BROKEN by contract."""
    lines = (line.rsplit(maxsplit=1) for line in printed.splitlines())
    return {line[0]: line[1] for line in lines if len(line) == 2 and line[1] in {"KEPT", "BROKEN"}}


def add_import(tree: Path, importing: str, imported: str) -> None:
    """Inside a function: late imports count like any other."""
    module = tree / PACKAGES[importing.partition(".")[0]] / importing.replace(".", "/")
    path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    path.write_text(f"{path.read_text()}\n\ndef added_here() -> None:\n    import {imported}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The code, and the contracts over it."""
    copy = tmp_path / "tree"
    for package, folder in PACKAGES.items():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / folder / package, copy / folder / package, ignore=ignored)
    shutil.copy(REPOSITORY / "pyproject.toml", copy)
    return copy


def test_every_contract_has_imports_that_it_forbids() -> None:
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert [contract["name"] for contract in contracts] == list(FORBIDDEN)


@pytest.mark.slow
def test_the_copy_keeps_every_contract(tree: Path) -> None:
    result = lint_imports(tree)
    assert result.returncode == 0, result.stdout + result.stderr
    assert verdicts(result.stdout) == dict.fromkeys(FORBIDDEN, "KEPT")


@pytest.mark.slow
@pytest.mark.parametrize("contract", FORBIDDEN)
def test_a_forbidden_import_breaks_its_contract(contract: str, tree: Path) -> None:
    for line in FORBIDDEN[contract]:
        add_import(tree, *line.split(" -> "))
    result = lint_imports(tree)
    assert result.returncode == 1, result.stdout + result.stderr
    assert verdicts(result.stdout)[contract] == "BROKEN"
    # Of a circle, which is there by one more import, any of its imports is named, by the names within the package.
    printed = result.stdout.replace("- .hashing -> .md5s", "- .md5s -> .hashing")
    reported = [line for line in FORBIDDEN[contract] if line in printed or line.replace("dvc_project", "") in printed]
    assert reported == FORBIDDEN[contract]


@pytest.mark.slow
@pytest.mark.parametrize("package", ["paco_core", "paco_pipelines"])
def test_a_room_without_a_place_breaks_its_contract(package: str, tree: Path) -> None:
    (tree / PACKAGES[package] / package / "loose.py").write_text("")
    result = lint_imports(tree)
    assert result.returncode == 1, result.stdout + result.stderr
    broken = {name for name, verdict in verdicts(result.stdout).items() if verdict == "BROKEN"}
    assert broken == {f"rooms of {package} import downwards only, and every room is named"}
