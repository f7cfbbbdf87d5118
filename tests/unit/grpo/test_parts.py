"""Sampler, prompt split, log and checks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paco_core.data.records.prompt_content import contents_of_all
from paco_core.grpo import checks
from paco_core.grpo.prompt_split import (
    hold_out,
    prompts_of_epoch,
    trained_prompts,
    validate_even_batches,
    validate_whole_groups,
)
from paco_core.io.files import DataError
from paco_core.rewards.base import RewardBatch
from paco_core.training.log import write_log
from tests.support.grpo_toys import Brightness, recipe, record, trainer


def test_every_prompt_is_met_equally_often() -> None:
    met = [row for epoch in range(30) for row in prompts_of_epoch(10, 3, epoch, seed=1)]
    counts = [met.count(row) for row in range(10)]
    assert max(counts) <= 10 and sum(counts) == 90
    first_deck = [row for epoch in range(3) for row in prompts_of_epoch(10, 3, epoch, seed=1)]
    assert len(set(first_deck)) == 9
    assert prompts_of_epoch(10, 3, 5, 1) == prompts_of_epoch(10, 3, 5, 1) != prompts_of_epoch(10, 3, 5, 2)


def test_what_cannot_be_dealt_is_refused() -> None:
    with pytest.raises(DataError, match="at most 2"):
        prompts_of_epoch(2, 3, 0, 0)
    rule = recipe(rollout_batch=4)  # 24 samples
    with pytest.raises(DataError, match=r"6 rollout batches.*\[1, 2, 3, 6\]"):
        validate_even_batches(["square"] * 8, rule, 4)
    validate_even_batches(["square"] * 8, rule, 3)
    validate_even_batches(["square", "wide"] * 4, rule, 4)


def test_a_groupwise_reward_needs_whole_groups_on_a_process() -> None:
    with pytest.raises(DataError, match="splits groups of 6.*choose 6"):
        validate_whole_groups(["grouped"], recipe(), 2)
    validate_whole_groups(["grouped"], recipe(), 1)
    validate_whole_groups(["grouped"], recipe(rollout_batch=12), 2)


def test_rewards_draw_anew_each_epoch_and_alike_in_evaluations(tmp_path: Path) -> None:
    class Drawing(Brightness):
        def __call__(self, batch: RewardBatch) -> np.ndarray:
            draws.append(batch.draw)
            return super().__call__(batch)

    draws: list[int] = []
    trainer(recipe=recipe(epochs=2), rewards={"brightness": Drawing()}).run(tmp_path, tmp_path / "checkpoint")
    assert len(set(draws)) == 3 and draws[0] == draws[-1] == 0


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


def test_a_collapse_is_found() -> None:
    def log(kept: float) -> list[dict[str, float]]:
        return [{"eval/64/panel_diversity": 0.3}, {"update/ratio_gap": 0.0}, {"eval/64/panel_diversity": 0.3 * kept}]

    assert checks.collapse(log(0.9), [64]).passed and not checks.collapse(log(0.4), [64]).passed


@pytest.mark.parametrize(
    ("first", "last", "passed", "severity"),
    [
        (0.0, 0.0, False, "WARN"),  # copies before and after: there was nothing to lose
        (1e-9, 0.0, False, "WARN"),  # a share of rounding is no share
        (0.0, 0.3, True, "ERROR"),
        (0.3, 0.0, False, "ERROR"),
    ],
)
def test_no_share_is_taken_of_a_first_diversity_of_nothing(
    first: float, last: float, passed: bool, severity: str
) -> None:
    rows = [{"eval/64/panel_diversity": first}, {"eval/64/panel_diversity": last}]
    report = checks.collapse(rows, [64])
    assert (report.passed, report.severity) == (passed, severity)
    both = checks.collapse([row | {"eval/128/panel_diversity": 0.3} for row in rows], [64, 128])
    assert both.metadata["diversity_kept_128px"] == 1.0 and (both.passed, both.severity) == (passed, severity)


def test_log_is_read_back(tmp_path: Path) -> None:
    rows = [{"epoch": 0.0, "eval/64/a": 0.5}, {"epoch": 1.0, "b": 2.0}]
    write_log(tmp_path / "log.csv", rows)
    assert checks.read_log(tmp_path / "log.csv") == rows
    with pytest.raises(DataError, match="no such file"):
        checks.read_log(tmp_path / "nothing.csv")
