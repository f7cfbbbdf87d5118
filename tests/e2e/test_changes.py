"""Re-runs after a change: the result of ``dvc status`` and Dagster's stale assets, for each change of a table.

The graph has run once. A case edits one thing, runs the stage ``code`` (``dvc repro`` would run it first), reads the
changed stages from ``dvc status`` and the stale assets from Dagster, and reverts the edit.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

import dvc_graphs as graphs
from dagster_dvc import DvcProject
from dvc_project.lockfile import Lock
from dvc_project.state import ProjectState
from paco_core.runtime.code import closure
from paco_pipelines.defs.translator import PacoTranslator
from tests.e2e.conftest import Dvc, changed_stages

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

GRIDS = {"grids@0", "grids@1"}
EDITORS = {"policies@kontext_edit", "policies@qwen_edit"}
POLICIES = {"policies@flux_t2is", *EDITORS}
BENCHMARKS = {"consistency_rank", "edit_reward", "t2is", "gedit"}
CLIP = "data/zoo/clip/open_clip_model.safetensors"
FLUX = "data/zoo/flux/transformer/diffusion_pytorch_model.safetensors"
WITH_TORCH = {
    "diverse_prompts", *GRIDS, "rankings", "annotations", "edits", "cot_labels", "reward_lora", "reward_merged",
    *POLICIES, "consistency_rank", "edit_reward", "t2is", "t2is_bench", "vistory", "gedit", "report",
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """An edit below the project, and the stages that have to run again for it alone."""

    name: str
    edit: Callable[[Path], None]
    stages: frozenset[str]


def number(key: str, value: Any, *stages: str) -> Change:
    def edit(root: Path) -> None:
        tree = yaml.safe_load((root / "params.yaml").read_text())
        *way, last = key.split(".")
        place = tree
        for part in way:
            place = place[part]
        place[last] = value(place[last]) if callable(value) else value
        (root / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))

    return Change(f"{key} in params.yaml", edit, frozenset(stages))


def text(file: str, before: str, after: str, *stages: str, name: str = "") -> Change:
    def edit(root: Path) -> None:
        content = (root / file).read_text()
        assert before in content, f"{file} has no {before!r}"
        (root / file).write_text(content.replace(before, after, 1))

    return Change(name or f"{after.strip()!r} in {file}", edit, frozenset(stages))


def line(file: str, *stages: str) -> Change:
    def edit(root: Path) -> None:
        (root / file).write_text((root / file).read_text() + "\nNEW = 1\n")

    return Change(f"a line in {file}", edit, frozenset(stages))


def byte(file: str, *stages: str) -> Change:
    def edit(root: Path) -> None:
        content = bytearray((root / file).read_bytes())
        content[len(content) // 2] ^= 1
        (root / file).write_bytes(content)

    return Change(f"a byte of {file}", edit, frozenset(stages))


def version(library: str, *stages: str) -> Change:
    def edit(root: Path) -> None:
        (root / f"{library}-99.0.dist-info").mkdir()
        (root / f"{library}-99.0.dist-info" / "METADATA").write_text(f"Name: {library}\nVersion: 99.0\n")

    return Change(f"{library} 99.0", edit, frozenset(stages))


def recipe(root: Path) -> None:
    tree = yaml.safe_load((root / "params.yaml").read_text())
    tree["policies"]["recipes"]["second"] = tree["policies"]["recipes"]["flux_t2is"]
    (root / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    graph = (root / "dvc.yaml").read_text()
    old = "      flux_t2is: {prompts: data/diverse_prompts, judged_by: data/reward_merged}\n"
    assert old in graph
    (root / "dvc.yaml").write_text(graph.replace(old, f"{old}{old.replace('flux_t2is', 'second')}"))


def one_more(value: Any) -> Any:
    return value + 1


#: tests/unit/config/test_recorded_parameters.py changes every number; here are those that several stages read.
CHANGES = [
    number("profile", "mine", "report"),
    number("execution.serving.linger_s", one_more),
    number("grids.height", 128, "prompts"),
    number("grid_shards", [0, 1, 2], *GRIDS, "grids@2"),
    number("cot_labels.model", "data/zoo/clip", "cot_labels"),
    number("reward.max_pixels", 6272, "reward_lora", "reward_merged", *BENCHMARKS, "t2is_bench", "vistory"),
    number("policies.defaults.learning_rate", 1e-5, *POLICIES, "report"),
    number("policies.recipes.kontext_edit.epochs", one_more, "policies@kontext_edit", "gedit", "report"),
    text("paco_core/grpo/losses.py", "torch.maximum(-advantages", "torch.maximum(advantages", *POLICIES),
    text("paco_core/rewards/clip_t.py", "totals /", "2 * totals /", "policies@flux_t2is", "t2is"),
    text("paco_core/rewards/jpeg.py", "QUALITY = 95", "QUALITY = 94"),
    line("paco_core/policies/qwen_image_edit.py", "policies@qwen_edit", "edits", "gedit", "report"),
    text("paco_core/report/templates/report.html.j2", "</body>", "<p>new</p></body>", "report"),
    line("paco_core/stages/prompts.py", "prompts"),
    text("paco_core/stages/reward_lora.py", '("roc_auc",)', '("loss",)'),  # of its headline
    line("paco_core/planning/amounts.py"),
    text("paco_core/rewards/registry.py", "REWARDS = {", "REWARDS = {'another': 'paco_core.rewards.jpeg:QUALITY',"),
    text(
        "paco_core/policies/families.py",
        "FAMILIES = {",
        "FAMILIES = {'another': Family('paco_core.policies.flux:FluxPolicy', 'FluxPipeline', (), ()),",
    ),
    line("paco_core/runtime/tracking/journal.py"),
    text("paco_core/grpo/losses.py", '"""max(-A rho', '"""Another docstring: max(-A rho'),
    text("paco_core/grpo/losses.py", "\ndef ", "\n\n\n\ndef ", name="layout of paco_core/grpo/losses.py"),
    byte(CLIP, "diverse_prompts", "policies@flux_t2is", "consistency_rank", "edit_reward", "t2is", "vistory", "report"),
    byte(FLUX, *GRIDS, "policies@flux_t2is", "t2is", "report"),
    version("torch", *WITH_TORCH),
    Change("a recipe more", recipe, frozenset({"policies@second", "report"})),
]  # fmt: skip


@pytest.fixture(scope="module")
def marked(smoke: Path) -> Any:
    """A Dagster that has seen the graph as it is."""
    with dg.DagsterInstance.ephemeral() as instance:
        dagster_knows(smoke, instance, set())
        yield instance


def dagster_knows(root: Path, instance: dg.DagsterInstance, stages: Collection[str]) -> None:
    """Once the sensor has ticked, Dagster's marks and checks name these stages and no others."""
    translator = PacoTranslator()
    defs, _ = graphs.tick(root, instance, translator)
    project = DvcProject(root, translator.get_derived)
    graphs.know(defs, instance, project, {s for s in stages if project.stages[s].group in project.assets})


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_change_concerns_what_it_must_and_nothing_else(
    smoke: Path, dvc: Dvc, marked: dg.DagsterInstance, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(smoke))
    forget_versions()
    stash = subprocess.run(["git", "stash", "create"], cwd=smoke, capture_output=True, text=True).stdout
    files = {name: (smoke / name).read_bytes() for name in ("params.yaml", "dvc.yaml", "dvc.lock")}
    try:
        change.edit(smoke)
        project = DvcProject(smoke, PacoTranslator().get_derived)
        stale = {state.stage.name for state in ProjectState(project).all() if state.reasons or state.entry is None}
        assert stale - {"code"} == change.stages, "as the project reads itself, before anything has run"
        dagster_knows(smoke, marked, change.stages)
        assert changed_stages(dvc) == change.stages, "as dvc status sees it"
    finally:
        _take_back(smoke, stash.strip(), files)
        forget_versions()


def forget_versions() -> None:
    """Look at what is installed anew."""
    for cached in (closure._version, closure._distributions, closure._installed):
        cached.cache_clear()


def _take_back(root: Path, stash: str, files: dict[str, bytes]) -> None:
    """Every edit, whichever file it was in."""
    subprocess.run(["git", "checkout", "-q", stash or "HEAD", "--", "paco_core", "data/zoo"], cwd=root, check=True)
    subprocess.run(["git", "reset", "-q"], cwd=root, check=True)
    for name, content in files.items():
        (root / name).write_bytes(content)
    for folder in root.glob("*-99.0.dist-info"):
        shutil.rmtree(folder)


def test_other_code_gives_another_policy_and_the_old_code_the_old_one_back(smoke: Path, dvc: Dvc) -> None:
    """The sign of the advantages is flipped: weights differ. Flipped back, DVC's cache gives them back untrained."""
    stage, out = "policies@flux_t2is", "data/policies/flux_t2is"
    before = Lock.read(smoke).md5_of(out)
    names = ("params.yaml", "dvc.yaml", f"data/runs/{stage}.json")  # DVC's cache does not restore the record of the run
    files = {name: (smoke / name).read_bytes() for name in names}
    flip = next(change for change in CHANGES if "torch.maximum(advantages" in change.name)
    flip.edit(smoke)
    result = dvc("repro", "--single-item", "code", stage)
    assert result.returncode == 0 and "resumes after" not in result.stderr, result.stderr[-3000:]
    assert Lock.read(smoke).md5_of(out) != before
    _take_back(smoke, "", files)
    result = dvc("repro", "--single-item", "code", stage)
    assert result.returncode == 0 and f"Stage '{stage}' is cached" in result.stdout + result.stderr
    assert Lock.read(smoke).md5_of(out) == before
    assert changed_stages(dvc) == set()
