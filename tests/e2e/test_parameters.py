"""Each stage declares in dvc.yaml the parameters that it reads, no more and no less: recorded in the smoke run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dvc_project.project import ResolvedStage, stages_of
from paco_core.config.execution import EXECUTION
from paco_core.config.params import load

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

#: Benchmarks ask each recipe for its family, and pass over those of the other kind.
OF_ANOTHER_KIND = {"t2is": (".family", ".task"), "gedit": (".family", ".task")}
#: Declared, and not read where the smoke profile chooses another source, engine or loss: reason by dotted key.
NOT_IN_THIS_PROFILE = {
    "prompts.source": "engine import",
    "prompts.endpoint": "engine openai",
    "annotations.file": "source import",
    "annotations.store": "verbs of the annotation page",
    "annotations.judge": "source judge",
    "annotations.endpoint": "source judge",
    "edit_prompts.file": "source file",
    "cot_labels.endpoint": "engine openai",
    "reward.weights": "source adapter or merged",
    "vistory.clip": "no source",
    "vistory.adherence": "no source",
    "vistory.bootstrap": "no source",
    "vistory.seed": "no source",
    "serving.device": "the command that starts a server: another stage had started it",
}


def covered(leaf: str, declared: tuple[str, ...]) -> bool:
    return any(leaf == key or leaf.startswith(f"{key}.") for key in declared)


def leaves(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from leaves(part, f"{key}.{name}")
    else:
        yield key


def before(graph: dict[str, ResolvedStage], stage: ResolvedStage) -> set[str]:
    """Labels of the stages whose outs a stage reads."""
    return {label for label, other in graph.items() if set(other.data) & set(stage.deps)}


@pytest.fixture(scope="module")
def read(smoke: Path) -> dict[str, set[str]]:
    """Leaves that each stage read."""
    files = sorted((smoke.parent / "traced/params").glob("*.json"))
    return {file.stem: set(json.loads(file.read_text())) for file in files}


@pytest.fixture(scope="module")
def graph(smoke: Path) -> dict[str, ResolvedStage]:
    return {label: stage for label, stage in stages_of(smoke).items() if stage.group != "code"}


def test_every_stage_was_recorded(read: dict[str, set[str]], graph: dict[str, ResolvedStage]) -> None:
    assert set(read) == set(graph)
    assert {"grids.steps", "grids.model"} <= read["grids@0"] and "world" in read["report"]


def test_no_stage_reads_what_it_does_not_declare(read: dict[str, set[str]], graph: dict[str, ResolvedStage]) -> None:
    undeclared_by_stage = {}
    for label, stage in graph.items():
        declared = stage.params.get("params.yaml", ())
        allowed = {leaf for leaf in read[label] if leaf.startswith(f"{EXECUTION}.")}
        if stage.group in OF_ANOTHER_KIND:
            tails = OF_ANOTHER_KIND[stage.group]
            allowed |= {leaf for leaf in read[label] if leaf.startswith("policies.recipes.") and leaf.endswith(tails)}
        if undeclared := sorted(leaf for leaf in read[label] - allowed if not covered(leaf, declared)):
            undeclared_by_stage[label] = undeclared
    assert not undeclared_by_stage, f"declare in dvc.yaml: {undeclared_by_stage}"


def test_no_stage_declares_what_it_does_not_read(
    smoke: Path, read: dict[str, set[str]], graph: dict[str, ResolvedStage]
) -> None:
    tree: Any = load(smoke / "params.yaml").model_dump(mode="json")
    unread_keys = {}
    for label, stage in graph.items():
        # What the stages before it read of a section makes them run again, and with them this one.
        read_leaves = read[label].union(*(read[name] for name in before(graph, stage)))
        idle = []
        for key in stage.params.get("params.yaml", ()):
            value = tree
            for part in key.split("."):
                value = value[part]
            if key.startswith("policies.recipes"):  # read by parts; what else is in it makes the policy that is read
                idle += [] if any(leaf.startswith(key) for leaf in read[label]) else [key]
                continue
            unread = [
                leaf for leaf in leaves(value, key) if not any(covered(leaf_read, (leaf,)) for leaf_read in read_leaves)
            ]
            idle += [leaf for leaf in unread if leaf not in NOT_IN_THIS_PROFILE]
        if idle:
            unread_keys[label] = idle
    assert not unread_keys, f"take out of dvc.yaml: {unread_keys}"
