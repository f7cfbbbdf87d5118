"""Z-Image of random weights through the one trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paco_core.policies import base
from tests.support.grpo_toys import Brightness, recipe, record, trainer
from tests.support.tiny_pipelines import z_image


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "dynamics", "noise_steps"), [("ppo", "flow_sde", [1]), ("nft", "ode", [])])
def test_it_is_trained(tmp_path: Path, loss: str, dynamics: str, noise_steps: list[int]) -> None:
    """The ratio is one before an update, and the adapter moves."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = z_image(tmp_path / "model")
    terms = {"terms": {"brightness": {"weight": 1.0}}, "aggregator": "weighted_sum", "advantage_std": "group"}
    rule = recipe(
        family="z_image", task="sets", loss=loss, dynamics=dynamics, noise_steps=noise_steps, guidance=2.0,
        eval_sizes=[32], rewards=terms, epochs=2, eval_every=9, learning_rate=0.03, gradient_checkpointing=True,
        lora={"rank": 2, "alpha": 4, "targets": None},
    )  # fmt: skip
    policy = base.load_policy("z_image", str(model), "cpu", "float32")
    outcome = trainer(
        policy=policy, recipe=rule, rewards={"brightness": Brightness()}, train=[record(n) for n in range(4)],
        unseen=[record(20)],
    ).run(tmp_path / "out", tmp_path / "out/checkpoint")  # fmt: skip
    assert all(row["update/grad_norm"] > 0 for row in outcome.rows[1:])
    assert loss == "nft" or max(row["update/ratio_gap"] for row in outcome.rows[1:]) < 1e-4
    assert outcome.after["32/brightness"] != outcome.before["32/brightness"]
