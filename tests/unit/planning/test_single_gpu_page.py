"""docs/tutorial/single-gpu.md: its numbers are those of `paco plan` and `paco check`, and its checkpoints exist."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from huggingface_hub import constants

from dvc_project.project import stages_of
from paco_core.config import profiles
from paco_core.config.params import Params, parse
from paco_core.planning import gpu_hours
from paco_core.planning.costs import stage_costs
from paco_core.planning.disk import disk_needs
from paco_core.planning.memory import server_gb
from paco_core.planning.read_references import read_references
from paco_core.runtime.stage import Cost
from paco_core.stages import declared

POLICY = "policies@flux_t2is"
GPUS = ("RTX 3090", "RTX 4090")


def klein(repository: Path, epochs: int) -> Params:
    tree = profiles.resolve(repository, "klein")
    tree["prompts"]["source"] = "examples/prompts.jsonl"
    tree["policies"]["defaults"]["epochs"] = epochs
    return parse(tree)


def hours(cost: Cost) -> Iterable[str]:
    """Hours of a stage on each GPU, as `paco check` prints them."""
    parts = [part.split(" on ") for part in cost.note.partition(", estimated")[0].removeprefix("about ").split(", ")]
    by_gpu = {gpu: time for time, gpu in parts}
    return [by_gpu[gpu] for gpu in GPUS]


def test_the_table_is_that_of_plan_and_check(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_hours, "product_names", list)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    page = (repository / "docs/tutorial/single-gpu.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith("|")][2:8]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    _, merge, epoch, training, comparison, _ = rows
    stages = declared(repository)
    epoch_costs, costs = (stage_costs(stages, klein(repository, epochs), repository) for epochs in (1, 100))
    params = klein(repository, 100)
    server = server_gb(params, repository)
    assert merge[2] == f"{costs['reward_merged'].memory_gb:.1f} GB"
    for row, cost in ((epoch, epoch_costs[POLICY]), (training, costs[POLICY]), (comparison, costs["t2is"])):
        assert row[1] == f"{cost.memory_gb + server:.0f} GB"
        assert row[4:] == hours(cost)
    read = list(read_references(params, stages_of(repository).values(), stages))
    needs = disk_needs(params, read, costs, repository)
    assert [row[3] for row in rows if row[3]] == [f"{gb:.1f} GB" for gb in needs.values()]
    assert f"- {sum(needs.values()):.0f} GB of free disk" in page and "- 32 GB of main memory" in page


def test_the_checkpoints_to_compare_are_those_that_a_training_keeps(repository: Path) -> None:
    page = (repository / "docs/tutorial/single-gpu.md").read_text()
    tree = profiles.resolve(repository, "klein")
    keys = dict(re.findall(r"`execution\.policies\.(\w+): (\d+)`", page))
    assert set(keys) == {"checkpoint_every", "keep_checkpoints"}
    tree["execution"]["policies"] |= {key: int(value) for key, value in keys.items()}
    recipe = parse(tree).policies.recipes["flux_t2is"]
    saved = range(recipe.checkpoint_every, recipe.epochs + 1, recipe.checkpoint_every)
    epochs = re.search(r"checkpoints of epochs ([\d, and]+) with", page)
    assert epochs is not None and re.findall(r"\d+", epochs[1]) == [str(n) for n in saved[-recipe.keep_checkpoints :]]
    assert "paco grade" in page.partition("\n## 8.")[2].partition("\n## 9.")[0]
