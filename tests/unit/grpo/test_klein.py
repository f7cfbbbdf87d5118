"""FLUX.2 [klein], FLUX 3 Klein and Qwen-Image-2.1 of random weights through the one trainer, for each task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from paco_core.data.prompts.edit_prompts import storybook_edit_prompts
from paco_core.grpo.prompt_split import held_out_edits
from paco_core.grpo.trainer import Trainer
from paco_core.policies import base
from tests.support import grpo_toys
from tests.support.grpo_toys import Brightness, recipe, record
from tests.support.tiny_pipelines import flux2_klein, flux3_klein, qwen_image_21

BUILDERS = {"flux2_klein": flux2_klein, "flux3_klein": flux3_klein, "qwen_image_21": qwen_image_21}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return {family: build(folder / family / "model") for family, build in BUILDERS.items()}


def side_of(family: str, task: str) -> int:
    """A panel has 32 px at least with Qwen-Image-2.1, and 64 px if it is a reference image."""
    return 128 if task == "stories" else 64 if family == "qwen_image_21" else 32


def trainer(models: dict[str, Path], family: str, task: str, loss: str, epochs: int) -> Trainer:
    kind: Any = "sets" if task == "stories" else task
    side = side_of(family, task)
    noise = {"noise_steps": [1], "dynamics": "flow_sde"} if loss == "ppo" else {"noise_steps": [], "dynamics": "ode"}
    one_by_one = {"panels": "one_by_one", "guidance": 1.0} if task == "stories" else {}
    terms = {"terms": {"brightness": {"weight": 1.0}}, "aggregator": "weighted_sum", "advantage_std": "group"}
    rule = recipe(
        **{"family": family, "task": kind, "loss": loss, "guidance": 2.0, "train_size": side, "eval_sizes": [side],
        "rewards": terms, "epochs": epochs, "eval_every": 9, "learning_rate": 0.03,
        "lora": {"rank": 2, "alpha": 4, "targets": None}, "gradient_checkpointing": True, **noise, **one_by_one},
    )  # fmt: skip
    policy = base.load_policy(family, str(models[family]), "cpu", "float32", task=kind)
    options: dict[str, Any] = {"policy": policy, "recipe": rule, "rewards": {"brightness": Brightness()}}
    if kind == "sets":
        return grpo_toys.trainer(train=[record(n) for n in range(4)], unseen=[record(20)], **options)
    edit_prompts = storybook_edit_prompts(8, 32, 0)
    edit_prompts.hold_out(3, 0)
    shapes = {r.idx: (64, 64) if n % 2 else (96, 64) for n, r in enumerate(edit_prompts.records)}
    split = held_out_edits(edit_prompts.records, lambda r: [Image.new("RGB", shapes[r.idx], (200, 40, 40))], 3, 0)
    return grpo_toys.trainer(train=split.trained, unseen=split.unseen, reference=split.reference, **options)


@pytest.mark.thorough
@pytest.mark.parametrize(("task", "loss"), [("sets", "ppo"), ("edits", "ppo"), ("edits", "nft"), ("stories", "ppo")])
@pytest.mark.parametrize("family", BUILDERS)
def test_it_is_trained_and_resumed(models: dict[str, Path], tmp_path: Path, family: str, task: str, loss: str) -> None:
    """The ratio is one before an update, the adapter moves, and two epochs in two goes are two epochs in one."""
    outcome = trainer(models, family, task, loss, 2).run(tmp_path / "one", tmp_path / "one/checkpoint")
    assert all(row["update/grad_norm"] > 0 for row in outcome.rows[1:])
    assert loss == "nft" or max(row["update/ratio_gap"] for row in outcome.rows[1:]) < 1e-4
    side = side_of(family, task)
    assert outcome.after[f"{side}/brightness"] != outcome.before[f"{side}/brightness"]
    with pytest.raises(KeyboardInterrupt):
        cut = trainer(models, family, task, loss, 2)
        step = cut.learner.learn
        finished: list[int] = []

        def stop_after_one(*args: Any, **kwargs: Any) -> Any:
            if finished:
                raise KeyboardInterrupt
            finished.append(1)
            return step(*args, **kwargs)

        cut.learner.learn = stop_after_one  # type: ignore[method-assign]
        cut.run(tmp_path / "two", tmp_path / "two/checkpoint")
    resumed = trainer(models, family, task, loss, 2).run(tmp_path / "two", tmp_path / "two/checkpoint")
    assert resumed.resumed_at == 1
    name = "adapter/pytorch_lora_weights.safetensors"
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
