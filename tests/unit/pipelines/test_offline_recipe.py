"""A recipe that learns from rankings needs no reward: the graph must not make it wait for one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dvc_project.project import DvcProject

LINE = "      flux_t2is: {prompts: data/diverse_prompts, judged_by: data/reward_merged}\n"
OFFLINE = "      flux_dpo: {prompts: data/diverse_prompts, judged_by: data/annotations}\n"


def above(upstream: dict[str, list[str]], name: str) -> set[str]:
    """Every stage that a stage waits for."""
    found = set(upstream[name])
    return found.union(*(above(upstream, one) for one in found))


def test_a_policy_of_rankings_waits_for_grids_and_annotations_alone(repository: Path, tmp_path: Path) -> None:
    graph = (repository / "dvc.yaml").read_text()
    assert LINE in graph
    (tmp_path / "dvc.yaml").write_text(graph.replace(LINE, LINE + OFFLINE))
    shutil.copy(repository / "params.yaml", tmp_path)
    upstream = {name: list(found) for name, found in DvcProject(tmp_path).upstream.items()}
    assert above(upstream, "policies@flux_dpo") - {"code"} == {
        "prompts", "diverse_prompts", "grids@0", "grids@1", "rankings", "annotations",
    }  # fmt: skip
    assert "reward_merged" in above(upstream, "policies@flux_t2is")


@pytest.mark.slow
def test_dvc_reads_the_recipes_as_the_library_does(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text((repository / "dvc.yaml").read_text().replace(LINE, LINE + OFFLINE))
    shutil.copy(repository / "params.yaml", tmp_path)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], cwd=tmp_path, check=True)
    listed = subprocess.run(
        [sys.executable, "-m", "dvc", "stage", "list", "--name-only"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert set(listed) == set(DvcProject(tmp_path).upstream)
