"""One, two and three processes compute the same up to rounding: gloo on CPU, a tiny FLUX, each rank a forked process.

Bits are promised for one number of processes. Between numbers of them the gradient is summed in another order, so that
weights differ by rounding after the first update, and a pixel of a later image by one level of 255.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from paco_core.data.records.records import PromptRecord
from paco_core.grpo.learner import Learner
from paco_core.policies import base
from tests.support.grpo_toys import recipe, record, trainer
from tests.support.ranks import FSDP2, together
from tests.support.tiny import TEXT_LENGTH, tiny_flux


class Watching(Learner):
    """Keeps each epoch's advantages."""

    def learn(self, experience: Any) -> Any:
        self.epoch_advantages = [*getattr(self, "epoch_advantages", []), experience.advantages.tolist()]
        return super().learn(experience)


#: Odd numbers of micro-batches and of evaluation batches: one of two ranks is idle where the other is not.
ODD = {"train_batch": 5, "eval_seeds": [0], "eval_prompts": 3}


def with_layout(base_record: PromptRecord, layout: str) -> PromptRecord:
    rows, columns = (int(n) for n in layout.split("x"))
    return base_record.model_copy(update={"layout": layout, "height": 16 * rows, "width": 16 * columns})


def work(model: Path, out: Path, env: dict[str, str], changes: dict[str, Any]) -> None:
    """One rank: trains, and writes what it saw."""
    os.environ.update(env)
    import paco_core.grpo.recipe as module

    module.Learner = Watching  # type: ignore[misc]
    options = {
        "lora": {"rank": 4, "alpha": 8, "targets": ["to_q", "to_v", "proj_out"]}, "learning_rate": 0.01, "epochs": 2,
        "eval_every": 1, "prompts_per_epoch": 6, "group_size": 4, "updates_per_epoch": 2, "rollout_batch": 4,
        "train_batch": 3,
    }  # fmt: skip
    steps = [1] if "train_batch" in changes else [1, 2]
    rule = recipe(**{**options, **changes, "max_sequence_length": TEXT_LENGTH, "noise_steps": steps})
    policy = base.load_policy("flux", str(model), "cpu", "float32")
    train, unseen = [record(n) for n in range(8)], [record(n) for n in range(20, 23)]
    layouts = ("2x2", "1x2", "1x3")  # pictures of 32 x 32, 16 x 32 and 16 x 48
    train = [with_layout(base_record, layouts[number % 3]) for number, base_record in enumerate(train)]
    policy_trainer = trainer(policy=policy, recipe=rule, train=train, unseen=unseen)
    outcome = policy_trainer.run(out, out / "checkpoint")
    unwrapped: Any = policy
    parameter_types = {name: type(p).__name__ for name, p in unwrapped.transformer.named_parameters()}
    result = {"rows": outcome.rows, "advantages": policy_trainer.learner.epoch_advantages, "held": parameter_types}  # type: ignore[attr-defined]
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(result))


def train(
    world: int, model: Path, out: Path, env: dict[str, str] | None = None, changes: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """What each rank saw."""
    out.mkdir(exist_ok=True)
    together(work, model, out, env or {}, changes or {}, world=world, start_method="fork")
    return [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(world)]


def pixels(path: Path) -> np.ndarray[Any, np.dtype[np.int16]]:
    with Image.open(path) as image:
        return np.asarray(image, np.int16)


def figures(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if not name.startswith("seconds/")} for row in rows]


def assert_same_training(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Equal until the first update, and up to rounding after it: other noise or prompts would differ by 1 and more."""
    assert actual["advantages"][0] == expected["advantages"][0]
    np.testing.assert_allclose(actual["advantages"], expected["advantages"], rtol=0, atol=5e-3)
    assert [set(row) for row in actual["rows"]] == [set(row) for row in expected["rows"]]
    for row, other in zip(figures(actual["rows"]), figures(expected["rows"]), strict=True):
        assert row == pytest.approx(other, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.slow
def test_one_two_and_three_processes_compute_the_same(tmp_path: Path) -> None:
    """Six groups of four in batches of eight: at least four of them, of three sizes, shared out unevenly."""
    model, changes = tiny_flux(tmp_path / "flux"), {"rollout_batch": 8}
    (single,) = train(1, model, tmp_path / "1", changes=changes)
    weights = load_file(next((tmp_path / "1" / "checkpoint").glob("*/checkpoint-00002/tensors.safetensors")))
    assert np.ptp(single["advantages"][0]) > 1 and single["rows"][1]["update/ratio_gap"] < 1e-6
    for world in (2, 3):
        for result in train(world, model, tmp_path / str(world), changes=changes):
            assert_same_training(result, single)
        other = load_file(next((tmp_path / str(world) / "checkpoint").glob("*/checkpoint-00002/tensors.safetensors")))
        assert set(weights) <= set(other), "a random state for each rank besides"
        for name, tensor in weights.items():
            assert torch.allclose(tensor.double(), other[name].double(), rtol=0, atol=1e-6), name
        pictures = [sorted((tmp_path / str(n) / "samples" / "after").rglob("*.png")) for n in (1, world)]
        for image, several in zip(*pictures, strict=True):
            assert abs(pixels(image) - pixels(several)).max() <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"loss": "nft"}, {"old_log_prob": "recomputed"}], ids=["ppo", "nft", "recomputed"]
)
def test_sharded_frozen_weights_change_no_number(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = tiny_flux(tmp_path / "flux")
    (single,) = train(1, model, tmp_path / "1", changes={**ODD, **changes})
    assert set(single["held"].values()) == {"Parameter"}
    weights = load_file(next((tmp_path / "1" / "checkpoint").glob("*/checkpoint-00002/tensors.safetensors")))
    for result in train(2, model, tmp_path / "2", FSDP2, {**ODD, **changes}):
        adapter = {kind for name, kind in result["held"].items() if "lora_" in name}
        frozen = {kind for name, kind in result["held"].items() if "lora_" not in name}
        assert adapter == {"Parameter"} and frozen == {"DTensor"}
        assert_same_training(result, single)
    other = load_file(next((tmp_path / "2" / "checkpoint").glob("*/checkpoint-00002/tensors.safetensors")))
    for name, tensor in weights.items():
        assert torch.allclose(tensor.double(), other[name].double(), rtol=0, atol=1e-6), name
    adapters = [load_file(next((tmp_path / n / "adapter").glob("*.safetensors"))) for n in ("1", "2")]
    assert adapters[0].keys() == adapters[1].keys()
    assert len(adapters[1]) == sum("lora_" in name and ".default." in name for name in single["held"]), (
        "as many as are trained"
    )


@pytest.mark.slow
@pytest.mark.parametrize("env", [{}, FSDP2], ids=["whole", "fsdp2"])
def test_two_processes_go_on_from_a_checkpoint_bit_for_bit(tmp_path: Path, env: dict[str, str]) -> None:
    model = tiny_flux(tmp_path / "flux")
    train(2, model, tmp_path / "whole", env, ODD)
    for epochs in (1, 2):
        results = train(2, model, tmp_path / "parts", env, {**ODD, "epochs": epochs})
        assert [len(rank["advantages"]) for rank in results] == [1, 1], "the first epoch is not trained again"
    uninterrupted, parts = (
        load_file(next((tmp_path / name / "checkpoint").glob("*/checkpoint-00002/tensors.safetensors")))
        for name in ("whole", "parts")
    )
    assert uninterrupted.keys() == parts.keys() and all(
        torch.equal(tensor, parts[name]) for name, tensor in uninterrupted.items()
    )
