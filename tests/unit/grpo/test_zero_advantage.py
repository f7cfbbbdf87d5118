"""Samples of advantage 0 are passed where they have a gradient; samples without a score never are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paco_core.grpo.trainer import Outcome
from paco_core.rewards.base import RewardBatch
from tests.support.grpo_toys import Brightness, ToyPolicy, recipe, trainer

SAMPLES = 4 * 6
NFT, KL = {"loss": "nft", "nft": {"mix": 0.5}}, {"kl": {"beta": 1.0}}


class Alike(Brightness):
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

    def add_adapter(self, *given: Any) -> None:
        super().add_adapter(*given)
        with torch.no_grad():
            self.b.fill_(0.3)


def train(out: Path, reward: Alike, **changes: Any) -> tuple[Moved, Outcome]:
    policy = Moved()
    rule = recipe(**{"epochs": 1, "eval_seeds": [0], "updates_per_epoch": 2, "train_steps": [1], **changes})
    given = trainer(policy=policy, recipe=rule, rewards={"brightness": reward}, max_failed_share=0.5)
    return policy, given.run(out, out / "checkpoint")


@pytest.mark.parametrize(
    ("changes", "trained"), [({}, 0), ({"loss": "grpo_guard"}, 0), (KL, SAMPLES), (NFT, SAMPLES), (NFT | KL, SAMPLES)]
)
def test_a_loss_passes_the_samples_that_it_learns_from(tmp_path: Path, changes: dict[str, Any], trained: int) -> None:
    policy, outcome = train(tmp_path, Alike(), **changes)
    assert policy.rows["trained"] == outcome.rows[1]["update/trained"] == trained


@pytest.mark.parametrize("changes", [KL, NFT])
def test_a_sample_without_a_score_is_in_no_pass(tmp_path: Path, changes: dict[str, Any]) -> None:
    policy, outcome = train(tmp_path, Alike(failing=4), **changes)
    failed = outcome.rows[1]["groups/failed_samples"]
    assert failed > 0 and policy.rows["trained"] == SAMPLES - failed


def test_kl_alone_draws_the_policy_back(tmp_path: Path) -> None:
    still, _ = train(tmp_path / "without", Alike())
    drawn, outcome = train(tmp_path / "with", Alike(), epochs=4, **KL)
    assert torch.equal(still.b, torch.full_like(still.b, 0.3))
    distances = [row["update/kl"] for row in outcome.rows[1:]]
    assert distances[-1] < distances[0] and drawn.b.abs().mean() < 0.3
