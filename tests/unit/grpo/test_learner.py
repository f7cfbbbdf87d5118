"""The learner: the ratio before the first update, and which samples are passed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paco_core.grpo.outcome import Outcome
from paco_core.grpo.trainer import Reports
from paco_core.rewards.base import RewardBatch
from tests.support import grpo_toys
from tests.support.grpo_toys import Brightness, ToyPolicy, recipe, record, trainer

TRAIN, UNSEEN = [record(n) for n in range(4)], [record(20)]
LARGE = {"train_size": 512, "eval_sizes": [32]}  # 1,024 tokens


class Spoilt(ToyPolicy):
    """Trained passes predict something else than the rollout: by noise of a share, or another sample's velocity."""

    def __init__(self, noise: float = 0.0, swapped: bool = False) -> None:
        super().__init__()
        self.noise_share, self.swapped = noise, swapped

    def velocity(self, *args: Any) -> torch.Tensor:
        v = super().velocity(*args)
        if not torch.is_grad_enabled():
            return v
        noise = torch.randn(v.shape, generator=torch.Generator().manual_seed(len(v)))
        return (v.roll(1, 0) if self.swapped else v) + self.noise_share * v.detach().std() * noise


def train(out: Path, policy: ToyPolicy, lines: list[str] | None = None, **changes: Any) -> Outcome:
    rule = recipe(**{"epochs": 1, "dtype": "bfloat16", "train_batch": 4, "eval_seeds": [0], **LARGE, **changes})
    reports = Reports(log=[].append if lines is None else lines.append)
    policy_trainer = grpo_toys.trainer(policy=policy, recipe=rule, train=TRAIN, unseen=UNSEEN, reports=reports)
    return policy_trainer.run(out, out / "checkpoint")


@pytest.mark.parametrize("spoilt", [{"swapped": True}, {"noise": 0.2}])
def test_another_velocity_stops_the_training_in_bfloat16(tmp_path: Path, spoilt: dict[str, Any]) -> None:
    policy = Spoilt(**spoilt)
    with pytest.raises(RuntimeError, match="old_log_prob: recomputed"):
        train(tmp_path, policy)
    assert torch.equal(policy.b, torch.zeros(2, 4)), "no weight was changed"


def test_samples_outside_the_clip_before_the_first_update_are_logged_and_warned_of(tmp_path: Path) -> None:
    lines: list[str] = []
    row = train(tmp_path, Spoilt(noise=0.03), lines, max_ratio_gap=1.0, clip_range=1e-5).rows[1]
    assert 0.05 < row["update/first_clip_fraction"] <= 1 and row["update/ratio_gap"] > 1e-6
    assert len([line for line in lines if "old_log_prob: recomputed" in line]) == 1
    assert "update/first_clip_fraction" in (tmp_path / "training_log.csv").read_text()
    lines.clear()
    row = train(tmp_path / "plain", ToyPolicy(), lines, clip_range=1e-6, learning_rate=0.1).rows[1]
    assert row["update/first_clip_fraction"] == 0 and not any("outside" in line for line in lines)
    assert row["update/clip_fraction"] > 0.3, "later updates move the ratio on purpose"


SAMPLES = 4 * 6
NFT, KL = {"loss": "nft", "nft": {"mix": 0.5}}, {"kl": {"beta": 1.0}}


class ConstantReward(Brightness):
    """The same reward for all, none for every n-th."""

    def __init__(self, failing: int = 0) -> None:
        super().__init__()
        self.failing, self.causes = failing, {"timeout": 0}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        values = np.full(len(batch), 0.3)
        if self.failing:
            values[:: self.failing] = np.nan
        return values


class Moved(ToyPolicy):
    """Its adapter starts away from the bare model, as after some epochs."""

    def add_adapter(self, *args: Any) -> None:
        super().add_adapter(*args)
        with torch.no_grad():
            self.b.fill_(0.3)


def train_moved(out: Path, reward: ConstantReward, **changes: Any) -> tuple[Moved, Outcome]:
    policy = Moved()
    rule = recipe(**{"epochs": 1, "eval_seeds": [0], "updates_per_epoch": 2, "train_steps": [1], **changes})
    policy_trainer = trainer(policy=policy, recipe=rule, rewards={"brightness": reward}, max_failed_share=0.5)
    return policy, policy_trainer.run(out, out / "checkpoint")


@pytest.mark.parametrize(("changes", "trained"), [({}, 0), ({"loss": "grpo_guard"}, 0), (KL, SAMPLES), (NFT, SAMPLES)])
def test_a_loss_passes_the_samples_that_it_learns_from(tmp_path: Path, changes: dict[str, Any], trained: int) -> None:
    """All have the same score, and one in four has none in the second training."""
    policy, outcome = train_moved(tmp_path / "all", ConstantReward(), **changes)
    assert policy.rows["trained"] == outcome.rows[1]["update/trained"] == trained
    assert outcome.rows[1]["groups/zero_std"] == 4
    policy, outcome = train_moved(tmp_path / "some", ConstantReward(failing=4), **changes)
    failed = outcome.rows[1]["groups/failed_samples"]
    assert failed > 0 and policy.rows["trained"] == max(trained - failed, 0)
