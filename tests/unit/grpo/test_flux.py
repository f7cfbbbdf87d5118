"""PaCo-GRPO on a real, if tiny, FluxPipeline: a pixel reward rises and the adapter carries what was learnt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paco_core.policies import base
from paco_core.rewards.base import RewardBatch
from tests.support.grpo_toys import Brightness, recipe, record, trainer
from tests.support.tiny import TEXT_LENGTH, tiny_flux


class Redness(Brightness):
    """Mean red minus mean blue of a set, -1 to 1: something a random decoder can be moved along."""

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        pixels = [np.stack([np.asarray(p, dtype=float) / 255 for p in panels]) for panels in batch.panels]
        return np.array([float(np.mean(p[..., 0] - p[..., 2])) for p in pixels])


@pytest.mark.slow
def test_reward_rises_on_unseen_prompts_and_sizes(tmp_path: Path) -> None:
    rule = recipe(
        max_sequence_length=TEXT_LENGTH,
        lora={"rank": 8, "alpha": 16, "targets": ["to_q", "to_k", "to_v", "to_out.0", "proj_mlp", "proj_out"]},
        learning_rate=0.02,
        epochs=20,
        eval_every=20,
        group_size=8,
        rollout_batch=16,
        train_batch=16,
        eval_prompts=8,
        checkpoint_every=20,
    )
    policy = base.load_policy("flux", str(tiny_flux(tmp_path / "flux")), "cpu", "float32")
    train, unseen = [record(n) for n in range(8)], [record(n) for n in range(20, 28)]
    policy_trainer = trainer(policy=policy, recipe=rule, rewards={"brightness": Redness()}, train=train, unseen=unseen)
    outcome = policy_trainer.run(tmp_path / "out", tmp_path / "out" / "checkpoint")
    first, last = outcome.rows[1], outcome.rows[-1]
    std = first["variation/brightness"] * first["reward/brightness"]  # standard deviation over the first epoch
    assert last["reward/brightness"] > first["reward/brightness"] + std
    for side in (32, 64):
        assert outcome.after[f"{side}/brightness"] > outcome.before[f"{side}/brightness"] + std
    assert max(row["update/ratio_gap"] for row in outcome.rows[1:]) < 1e-6
    assert sorted(p.suffix for p in (tmp_path / "out" / "adapter").iterdir()) == [".md", ".png", ".safetensors"]
