"""Compiled blocks: rollouts and trained passes agree, and a training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters

from paco_core.grpo.checks import max_ratio_gap
from paco_core.grpo.outcome import Outcome
from paco_core.policies import base
from tests.support.grpo_toys import recipe, record, trainer
from tests.support.tiny import TEXT_LENGTH, tiny_flux

TRAIN, UNSEEN = [record(n) for n in range(4)], [record(20), record(21)]
RULE: dict[str, Any] = {
    "lora": {"rank": 4, "alpha": 8, "targets": ["to_q", "to_v"]}, "eval_every": 2, "prompts_per_epoch": 2,
    "group_size": 4, "updates_per_epoch": 1, "rollout_batch": 4, "train_batch": 3, "sampling_steps": 3, "eval_steps": 2,
    "eval_sizes": [32], "eval_seeds": [0], "eval_prompts": 2, "max_sequence_length": TEXT_LENGTH,
}  # fmt: skip


def train(model: Path, out: Path, epochs: int, *, compile: bool = True) -> Outcome:
    torch._dynamo.reset()  # as in a process of its own
    rule = recipe(**RULE, epochs=epochs, compile=compile)
    policy = base.load_policy("flux", str(model), "cpu", "float32")
    policy_trainer = trainer(policy=policy, recipe=rule, train=TRAIN, unseen=UNSEEN)
    return policy_trainer.run(out, out / "checkpoint")


def adapter(out: Path) -> dict[str, torch.Tensor]:
    return load_file(next((out / "adapter").glob("*.safetensors")))


@pytest.mark.faults
def test_a_compiled_training_keeps_the_ratio_and_goes_on(tmp_path: Path) -> None:
    model = tiny_flux(tmp_path / "flux")
    plain = train(model, tmp_path / "plain", 2, compile=False)
    counters.clear()
    uninterrupted = train(model, tmp_path / "whole", 2)
    assert counters["stats"]["unique_graphs"] == 4, "two kinds of block, with gradient and without, for all shapes"
    assert not counters["graph_break"]
    for epochs in (1, 2):
        parts = train(model, tmp_path / "parts", epochs)
        assert parts.resumed_at == epochs - 1
    for row, plain_row in zip(uninterrupted.rows[1:], plain.rows[1:], strict=True):
        assert row["update/ratio_gap"] < max_ratio_gap(recipe()) / 10 and row["update/grad_norm"] > 0
        assert row["update/grad_norm"] == pytest.approx(plain_row["update/grad_norm"], rel=1e-3)
    uninterrupted_adapter, other, eager = (adapter(tmp_path / name) for name in ("whole", "parts", "plain"))
    assert uninterrupted_adapter.keys() == other.keys() == eager.keys()
    for name, tensor in uninterrupted_adapter.items():
        assert torch.equal(tensor, other[name]), name
        assert torch.allclose(tensor, eager[name], rtol=0, atol=1e-3), name
