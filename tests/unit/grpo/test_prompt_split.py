"""Prompt splits: the prompts of training and evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from paco_core.benchmarks.generated import unseen_sets
from paco_core.config.params import Params, parse
from paco_core.data.records.prompt_content import contents_of_all
from paco_core.data.records.records import PromptRecord, write_prompts
from paco_core.grpo.prompt_split import (
    hold_out,
    prompts_of_epoch,
    trained_prompts,
    validate_even_batches,
    validate_whole_groups,
)
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.tasks.base import PlannedPrompts
from paco_core.tasks.sets import SETS
from tests.support import REPOSITORY
from tests.support.grpo_toys import recipe, record


def parameters(**files: Any) -> Params:
    params = yaml.safe_load((REPOSITORY / "params.yaml").read_text())
    for name in params["policies"]["recipes"]:
        if name.startswith("flux"):
            params["policies"]["recipes"][name]["prompts"] = files or None
    params["policies"]["defaults"]["eval_prompts"] = 2
    return parse(params)


def write(folder: Path, name: str, records: list[PromptRecord]) -> str:
    write_prompts(folder / name, records)
    return name


def test_a_released_split_is_trained_and_tested_on_as_it_is(tmp_path: Path) -> None:
    train, test = [record(n) for n in range(6)], [record(n) for n in range(10, 15)]
    params = parameters(train=write(tmp_path, "train.jsonl", train), test=write(tmp_path, "test.jsonl", test))
    recipe = params.policies.recipes["flux_t2is"]
    split = SETS.split(recipe, lambda path: tmp_path / path)
    assert split.trained == train
    assert len(split.unseen) == 2 and all(record in test for record in split.unseen)
    assert SETS.plan_split(recipe, PlannedPrompts([], 0, []), lambda path: tmp_path / path) == split
    cases = unseen_sets(lambda path: tmp_path / path, params, {record.idx for record in train})
    assert {record.idx for record in cases.records} <= {record.idx for record in test}


def test_without_files_the_graphs_prompts_are_split(tmp_path: Path) -> None:
    records = [record(n) for n in (*range(6), 20)]
    for place in (paths.DIVERSE_PROMPTS, paths.PROMPTS):
        write_prompts(tmp_path / place / "prompts.jsonl", records)
    split = SETS.split(parameters().policies.recipes["flux_t2is"], lambda path: tmp_path / path)
    assert len(split.unseen) == 2 and len(split.trained) == 5


def test_every_prompt_is_met_equally_often() -> None:
    met = [row for epoch in range(30) for row in prompts_of_epoch(10, 3, epoch, seed=1)]
    counts = [met.count(row) for row in range(10)]
    assert max(counts) <= 10 and sum(counts) == 90
    first_deck = [row for epoch in range(3) for row in prompts_of_epoch(10, 3, epoch, seed=1)]
    assert len(set(first_deck)) == 9
    assert prompts_of_epoch(10, 3, 5, 1) == prompts_of_epoch(10, 3, 5, 1) != prompts_of_epoch(10, 3, 5, 2)


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(DataError, match="at most 2"):
        prompts_of_epoch(2, 3, 0, 0)
    rule = recipe(rollout_batch=4)  # 24 samples
    with pytest.raises(DataError, match=r"6 rollout batches.*\[1, 2, 3, 6\]"):
        validate_even_batches(["square"] * 8, rule, 4)
    validate_even_batches(["square"] * 8, rule, 3)
    validate_even_batches(["square", "wide"] * 4, rule, 4)
    with pytest.raises(DataError, match="choose 6"):
        validate_whole_groups(["grouped"], recipe(), 2)
    validate_whole_groups(["grouped"], recipe(), 1)
    validate_whole_groups(["grouped"], recipe(rollout_batch=12), 2)


def test_held_out_prompts_are_never_trained_on(tmp_path: Path) -> None:
    records = [record(n) for n in range(10)]
    split = hold_out(records, 3, seed=1)
    assert len(split.unseen) == 3 and len(split.trained) == 7
    assert not {r.idx for r in split.unseen} & {r.idx for r in split.trained}
    assert hold_out(records, 3, seed=1) == split != hold_out(records, 3, seed=2)
    split.write(tmp_path)
    assert trained_prompts(tmp_path) == contents_of_all(split.trained)
    with pytest.raises(DataError, match="at most 9"):
        hold_out(records, 10, seed=1)
