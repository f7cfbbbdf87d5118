"""Ending a training early: on collapse, on a gradient that is not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paco_core.config.params import EarlyStop, HackMeter
from paco_core.grpo.hacking import agreement, alarm, collapse_reason, first_alarm
from paco_core.grpo.trainer import Reports, Trainer
from paco_core.rewards.base import RewardBatch
from paco_core.training.optimizers import NotFinite
from tests.support import grpo_toys
from tests.support.grpo_toys import ToyPolicy, recipe

RULE = EarlyStop(reward_rise=0.1, diversity_kept=0.5, patience=2)


def rows(rewards: list[float], diversities: list[float]) -> list[dict[str, float]]:
    trained = [
        {"epoch": n + 1.0, "reward/a": reward, "reward/b": 0.2, "panel_diversity": diversity}
        for n, (reward, diversity) in enumerate(zip(rewards, diversities, strict=True))
    ]
    return [{"epoch": 0.0, "eval/64/a": 0.1}, *trained]


@pytest.mark.parametrize(
    ("rewards", "diversities", "stops"),
    [
        ([1, 1, 2, 2], [0.4, 0.4, 0.1, 0.1], True),
        ([1, 1, 2, 2], [0.4, 0.4, 0.3, 0.1], False),  # one epoch is not patience
        ([1, 1, 1, 1], [0.4, 0.4, 0.1, 0.1], False),  # the reward did not rise
        ([1, 1, 2, 2], [0.4, 0.4, 0.3, 0.3], False),  # the panels still differ
        ([2, 2, 2], [0.4, 0.1, 0.1], False),  # too early to tell
    ],
)
def test_collapse_is_a_rising_reward_with_panels_that_become_one(
    rewards: list[float], diversities: list[float], stops: bool
) -> None:
    found = collapse_reason(rows(rewards, diversities), {"a": 1.0, "b": 0.5}, RULE)
    assert (found is not None) == stops
    if found is not None:
        assert "2.1 (1.1 at first)" in found and "0.1 (0.4 at first)" in found


@pytest.mark.parametrize(
    ("agreements", "raised"),
    [
        ([0.9, 0.4, 0.3, 0.2], True),
        ([0.4, 0.6, 0.2], True),  # their mean counts: one epoch has few prompts
        ([0.4, 0.9, 0.3, 0.3], False),
        ([0.4, 0.3], False),  # too few epochs
        ([0.4, float("nan"), 0.3, 0.2], True),  # an epoch that teaches nothing says nothing
        ([0.5, 0.5, 0.5], False),  # at the bound is not below it
    ],
)
def test_the_alarm_is_raised_where_judges_rank_samples_apart(agreements: list[float], raised: bool) -> None:
    trained = [{"epoch": n + 1.0, "agreement": one} for n, one in enumerate(agreements)]
    meter = HackMeter(trained="a", held_out="b", agreement=0.5, patience=3)
    found = alarm([{"epoch": 0.0}, *trained], meter)
    assert (found is not None) == raised
    if found is not None:
        mean = f"{np.nanmean([one for one in agreements if one == one][-3:]):.2f}"
        assert "a and the held-out b rank the samples of a prompt apart" in found
        assert f"{mean} over the 3 epochs up to {len(agreements)}, and 0.5 is asked for" in found
    later = [{"epoch": len(trained) + n + 1.0, "agreement": 0.9} for n in range(3)]
    assert first_alarm([*trained, *later], meter) == found and alarm([*trained, *later], meter) is None


@pytest.mark.parametrize(
    ("trained", "held_out", "found"),
    [
        ([[0.1, 0.2, 0.3]], [[0.5, 0.6, 0.7]], 1.0),  # whatever the scale
        ([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]], [[1, 2, 3], [3, 2, 1]], 0.0),
        ([[0.1, 0.2, 0.3]], [[0.5, 0.5, 0.5]], 0.0),  # the other judge sees no difference
        ([[0.5, 0.5, 0.5], [0.1, 0.2, 0.3]], [[1, 2, 3], [1, 2, 3]], 1.0),  # the first prompt teaches nothing
        ([[0.1, 0.2, 0.9]], [[0.5, 0.6, float("nan")]], 1.0),
        ([[0.5, 0.5]], [[0.5, 0.6]], float("nan")),
        ([[float("nan"), 0.5]], [[0.5, float("nan")]], float("nan")),
    ],
)
def test_agreement_is_the_correlation_of_scores_within_prompts(trained: Any, held_out: Any, found: float) -> None:
    assert agreement(np.array(trained), np.array(held_out)) == pytest.approx(found, abs=1e-6, nan_ok=True)


class Same:
    """A judge that nothing pleases more than anything else."""

    def __init__(self) -> None:
        self.name, self.causes = "same", dict[str, int]()

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        return np.full(len(batch), 0.5)


HEEDED = {"reward_rise": 9.0, "hack_meter": True}
METER = {"trained": "brightness", "held_out": "same", "patience": 2}
JUDGES = {"brightness": {"weight": 1.0, "reward": "own:brightness"}, "same": {"weight": 0.0, "reward": "own:same"}}
TWO = {"terms": JUDGES, "aggregator": "weighted_sum", "advantage_std": "group"}


@pytest.mark.parametrize("other", [Same(), grpo_toys.Brightness()])
def test_a_training_ends_where_its_judges_part_and_not_where_they_agree(tmp_path: Path, other: Any) -> None:
    rule = recipe(
        epochs=12, eval_every=99, group_size=12, learning_rate=0.3, early_stop=HEEDED, hack_meter=METER, rewards=TWO
    )
    rewards = {"brightness": grpo_toys.Brightness(), "same": other}
    outcome = grpo_toys.trainer(recipe=rule, rewards=rewards).run(tmp_path, tmp_path / "checkpoint")
    if isinstance(other, Same):
        assert outcome.stopped is not None and "0.00 over the 2 epochs up to 2" in outcome.stopped
        assert outcome.rows[-1]["epoch"] == 2
    else:
        assert outcome.stopped is None and outcome.rows[-1]["epoch"] == 12


def trainer(policy: ToyPolicy | None = None, reports: Reports | None = None, **changes: Any) -> Trainer:
    rule = recipe(epochs=30, eval_every=99, group_size=12, learning_rate=0.3, checkpoint_every=30, **changes)
    return grpo_toys.trainer(policy=policy or ToyPolicy(), recipe=rule, reports=reports or Reports())


def test_a_training_that_collapses_ends_early_and_whole(tmp_path: Path) -> None:
    """All white is the brightest: the panels of a set become equal while the reward rises."""
    told: list[str] = []
    rule = {"reward_rise": 0.02, "diversity_kept": 0.9, "patience": 2}
    outcome = trainer(reports=Reports(say=told.append), early_stop=rule).run(tmp_path, tmp_path / "checkpoint")
    last = int(outcome.rows[-1]["epoch"])
    assert 4 <= last < 30 and outcome.stopped is not None and "collapse" in outcome.stopped
    assert f"stopped after epoch {last} of 30: collapse" in told[-1]
    assert outcome.metrics()["stopped_early"] == 1.0 and outcome.metrics()["epochs"] == last
    assert (tmp_path / "adapter" / "adapter.safetensors").is_file()
    again = trainer(early_stop=rule)
    assert (
        int(again.run(tmp_path, tmp_path / "checkpoint").rows[-1]["epoch"]) == last
        and again.learner.policy.rows["trained"] == 0
    )  # type: ignore[attr-defined]


class BreaksLater(ToyPolicy):
    """Gradients are NaN from the third epoch on."""

    def velocity(self, *args: Any) -> torch.Tensor:
        v = super().velocity(*args)
        return v * torch.nan if torch.is_grad_enabled() and self.rows["trained"] > 2 * 48 else v


def test_a_gradient_that_is_not_finite_fails_or_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(NotFinite, match="norm is nan"):
        trainer(BreaksLater(), early_stop={}).run(tmp_path / "fails", tmp_path / "fails" / "checkpoint")
    policy = BreaksLater()
    outcome = trainer(policy, early_stop={"nan": "stop"}).run(tmp_path / "ends", tmp_path / "ends" / "checkpoint")
    assert outcome.stopped is not None and "norm is nan" in outcome.stopped
    assert [row["epoch"] for row in outcome.rows] == [0, 1, 2, 3]
    assert torch.isfinite(policy.b).all() and policy.b.abs().sum() > 0
    assert outcome.after["32/brightness"] > 0
