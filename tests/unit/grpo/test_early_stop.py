"""Ending a training early: on collapse, on a gradient that is not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paco_core.config.params import EarlyStop, HackMeter
from paco_core.grpo.early_stop import collapsed, drifted
from paco_core.grpo.outcome import Reports
from paco_core.grpo.trainer import Trainer
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
    found = collapsed(rows(rewards, diversities), {"a": 1.0, "b": 0.5}, RULE)
    assert (found is not None) == stops
    if found is not None:
        assert "2.1 (1.1 at first)" in found and "0.1 (0.4 at first)" in found


@pytest.mark.parametrize(
    ("trained", "held_out", "stops"),
    [
        ([0.5, 0.5, 0.8, 0.9], [0.4, 0.4, 0.45, 0.45], True),
        ([0.5, 0.5, 0.8, 0.9], [0.4, 0.4, 0.65, 0.75], False),  # shared
        ([0.5, 0.5, 0.8, 0.9], [0.4, 0.4, 0.65, 0.45], False),  # one epoch is not patience
        ([0.5, 0.5, 0.5, 0.5], [0.4, 0.4, 0.1, 0.1], True),  # lost by the other alone
        ([0.5, 0.9, 0.9], [0.4, 0.4, 0.4], False),  # too few epochs
        ([0.5, 0.5, 0.8, 0.9], [0.4, 0.4, float("nan"), 0.4], False),  # an epoch without an answer says nothing
    ],
)
def test_drift_is_a_gain_that_the_held_out_judge_does_not_share(
    trained: list[float], held_out: list[float], stops: bool
) -> None:
    found = drifted(
        [{"epoch": 0.0}] + [{"reward/a": one, "reward/b": other} for one, other in zip(trained, held_out, strict=True)],
        EarlyStop(patience=2, drift=0.2),
        HackMeter(trained="a", held_out="b"),
    )
    assert (found is not None) == stops
    if trained[-1] == 0.9 and stops:
        assert found is not None and "a gained 0.35, and the held-out b 0.05; more than 0.2 apart" in found


class Same:
    """A judge that nothing pleases more than anything else."""

    def __init__(self) -> None:
        self.name, self.causes = "same", dict[str, int]()

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        return np.full(len(batch), 0.5)


DRIFT = {"reward_rise": 9.0, "patience": 2, "drift": 0.03}
METER = {"trained": "brightness", "held_out": "same"}
JUDGES = {"brightness": {"weight": 1.0, "reward": "own:brightness"}, "same": {"weight": 0.0, "reward": "own:same"}}
TWO = {"terms": JUDGES, "aggregator": "weighted_sum", "advantage_std": "group"}


@pytest.mark.parametrize("other", [Same(), grpo_toys.Brightness()])
def test_a_training_ends_where_its_judges_part_and_not_where_they_agree(tmp_path: Path, other: Any) -> None:
    rule = recipe(
        epochs=12, eval_every=99, group_size=12, learning_rate=0.3, early_stop=DRIFT, hack_meter=METER, rewards=TWO
    )
    rewards = {"brightness": grpo_toys.Brightness(), "same": other}
    outcome = grpo_toys.trainer(recipe=rule, rewards=rewards).run(tmp_path, tmp_path / "checkpoint")
    if isinstance(other, Same):
        assert outcome.stopped is not None and outcome.stopped.startswith("drift: over the last 2 epochs brightness")
        assert outcome.rows[-1]["epoch"] < 12
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
