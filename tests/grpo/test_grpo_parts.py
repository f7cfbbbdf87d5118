"""Sampler, prompt split, log and checks."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpo_toys import record

from paco_core.grpo import checks
from paco_core.grpo.epoch_prompts import prompts_of_epoch, share
from paco_core.grpo.prompt_split import hold_out, trained_ids
from paco_core.io.files import DataError
from paco_core.training.log import write_log


def test_every_prompt_is_met_equally_often() -> None:
    met = [row for epoch in range(30) for row in prompts_of_epoch(10, 3, epoch, seed=1)]
    counts = [met.count(row) for row in range(10)]
    assert max(counts) <= 10 and sum(counts) == 90
    first_deck = [row for epoch in range(3) for row in prompts_of_epoch(10, 3, epoch, seed=1)]
    assert len(set(first_deck)) == 9
    assert prompts_of_epoch(10, 3, 5, 1) == prompts_of_epoch(10, 3, 5, 1) != prompts_of_epoch(10, 3, 5, 2)


def test_sampler_refuses_what_cannot_be_dealt() -> None:
    with pytest.raises(DataError, match="at most 2"):
        prompts_of_epoch(2, 3, 0, 0)
    with pytest.raises(DataError, match=r"6 rollout batches.*\[1, 2, 3, 6\]"):
        share(6, 0, 4)
    assert [list(share(6, rank, 3)) for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]


def test_held_out_prompts_are_never_trained_on(tmp_path: Path) -> None:
    records = [record(n) for n in range(10)]
    split = hold_out(records, 3, seed=1)
    assert len(split.unseen) == 3 and len(split.trained) == 7
    assert not {r.idx for r in split.unseen} & {r.idx for r in split.trained}
    assert hold_out(records, 3, seed=1) == split != hold_out(records, 3, seed=2)
    split.write(tmp_path)
    assert trained_ids(tmp_path) == {r.idx for r in split.trained}
    with pytest.raises(DataError, match="at most 9"):
        hold_out(records, 10, seed=1)


def log(diversity: float, gap: float, gain: float, following: float) -> list[dict[str, float]]:
    def figures(share: float, consistency: float, follows: float) -> dict[str, float]:
        names = {"panel_diversity": share, "gold_consistency": consistency, "gold_following": follows}
        return {f"eval/64/{name}": value for name, value in names.items()}

    before, after = figures(0.3, 0.4, 0.8), figures(0.3 * diversity, 0.4 + gain, 0.8 + following)
    return [before, {"update/ratio_gap": 1e-8}, {"update/ratio_gap": gap, **after}]


def test_checks_pass_and_fail() -> None:
    good = log(0.9, 1e-7, 0.2, -0.01)
    assert checks.collapse(good, [64]).passed and not checks.collapse(log(0.4, 0, 0, 0), [64]).passed
    assert checks.gold_gain(good, 64, 0.15).passed
    assert not checks.gold_gain(log(1, 0, 0.1, 0), 64, 0.15).passed
    assert not checks.gold_gain(log(1, 0, 0.2, -0.06), 64, 0.15).passed


def test_log_is_read_back(tmp_path: Path) -> None:
    rows = [{"epoch": 0.0, "eval/64/a": 0.5}, {"epoch": 1.0, "b": 2.0}]
    write_log(tmp_path / "log.csv", rows)
    assert checks.read_log(tmp_path / "log.csv") == rows
    with pytest.raises(DataError, match="no such file"):
        checks.read_log(tmp_path / "nothing.csv")
