"""The graph of ``dvc.yaml`` is whole: stages, their files, what they read, and the recipes of ``params.yaml``."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import yaml

from dvc_project.project import stages_of
from paco_core.io import paths
from tests.support import REPOSITORY

STAGES: dict[str, Any] = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]
GRAPH = stages_of(REPOSITORY)


def deps(stage: str) -> list[str]:
    """Of all items of a stage together."""
    paths = [dep for node in GRAPH.values() if node.group == stage for dep in node.deps]
    return list(dict.fromkeys(paths))


def test_every_stage_has_its_file_and_every_file_its_stage() -> None:
    files = {path.stem for path in (REPOSITORY / "paco_core/stages").glob("*.py")} - {"__init__"}
    in_rounds = {name for name in STAGES if paths.in_round(name)}  # the files of the stages they are named after
    assert {paths.in_round(name) for name in in_rounds} <= files
    assert files == set(STAGES) - in_rounds - {"code"}  # bookkeeping: paco_core/runtime/code/stage_code.py


def test_every_recipe_is_trained_and_benchmarked() -> None:
    from paco_core.config import params
    from paco_core.tasks.table import measured_by, recipes_of

    policies = params.load(REPOSITORY / params.PARAMS_FILE).policies
    assert [node.item for node in GRAPH.values() if node.group == "policies"] == list(policies.recipes)
    for benchmark in ("t2is", "gedit"):
        task = measured_by(benchmark)
        for name in recipes_of(task, policies):
            assert f"data/policies/{name}" in deps(benchmark)
            assert f"policies.recipes.{name}" in GRAPH[benchmark].params["params.yaml"]
            assert task.prompts.as_posix() in GRAPH[f"policies@{name}"].deps


def test_the_printed_graph_has_every_edge_as_declared() -> None:
    graph = subprocess.run(
        [sys.executable, "-m", "paco_core", "graph"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    assert graph.startswith("flowchart")
    edges = {tuple(line.split(" --> ")) for line in map(str.strip, graph.splitlines()) if " --> " in line}
    assert {("pairs", "cot_labels"), ("prompts", "t2is"), ("reward_merged", "policies")} <= edges
    assert {stage for edge in edges for stage in edge} == {name.partition("@")[0] for name in GRAPH} - {"code"}
