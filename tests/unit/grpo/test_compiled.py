"""Compiled blocks: rollouts and trained passes agree, a training goes on, and what cannot be compiled is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.utils import counters

from paco_core.grpo.checks import max_ratio_gap
from paco_core.grpo.trainer import Outcome
from paco_core.io.files import DataError
from paco_core.policies import base
from paco_core.policies.compiled import check_compile, compile_blocks
from tests.support.grpo_toys import ToyPolicy, recipe, record, trainer
from tests.support.ranks import FSDP2
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
    policy = base.load("flux", str(model), "cpu", "float32")
    given = trainer(policy=policy, recipe=rule, train=TRAIN, unseen=UNSEEN)
    return given.run(out, out / "checkpoint")


def adapter(out: Path) -> dict[str, torch.Tensor]:
    return load_file(next((out / "adapter").glob("*.safetensors")))


@pytest.mark.faults
def test_a_compiled_training_keeps_the_ratio_and_goes_on(tmp_path: Path) -> None:
    model = tiny_flux(tmp_path / "flux")
    plain = train(model, tmp_path / "plain", 2, compile=False)
    counters.clear()
    whole = train(model, tmp_path / "whole", 2)
    assert counters["stats"]["unique_graphs"] == 4, "two kinds of block, with gradient and without, for all shapes"
    assert not counters["graph_break"]
    for epochs in (1, 2):
        parts = train(model, tmp_path / "parts", epochs)
        assert parts.resumed_at == epochs - 1
    for row, own in zip(whole.rows[1:], plain.rows[1:], strict=True):
        assert row["update/ratio_gap"] < max_ratio_gap(recipe()) / 10 and row["update/grad_norm"] > 0
        assert row["update/grad_norm"] == pytest.approx(own["update/grad_norm"], rel=1e-3)
    one, other, eager = (adapter(tmp_path / name) for name in ("whole", "parts", "plain"))
    assert one.keys() == other.keys() == eager.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
        assert torch.allclose(tensor, eager[name], rtol=0, atol=1e-3), name


def test_what_cannot_be_compiled_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_compile(False, sharded=True)
    with pytest.raises(DataError, match="policies.defaults.compile: FSDP2 runs .* set it to false"):
        check_compile(True, sharded=True)
    with pytest.raises(DataError, match="no blocks that diffusers compiles"):
        compile_blocks(None)
    with pytest.raises(ValueError, match="compile: layers in nf4 are not compiled"):
        recipe(compile=True, base="nf4", device="cuda", dtype="bfloat16")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(DataError, match="needs a C.. compiler, and no-such-compiler is not installed"):
        check_compile(True)
    with pytest.raises(DataError, match="needs a C.. compiler"):
        trainer(policy=ToyPolicy(), recipe=recipe(compile=True), train=TRAIN, unseen=UNSEEN)


def test_a_sharded_training_is_refused_before_it_encodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in FSDP2.items():
        monkeypatch.setenv(name, value)
    policy = ToyPolicy()
    with pytest.raises(DataError, match="FSDP2 runs"):
        trainer(
            policy=policy,
            recipe=recipe(compile=True),
            train=TRAIN,
            unseen=UNSEEN,
            processes=SimpleNamespace(world_size=2),
        )
