"""Every family trained and gone on with, and the reward, on a pretended GPU (``tests/support/pretended_cuda``)."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paco_core.config.params import RewardParams
from paco_core.policies.families import FAMILIES
from paco_core.reward_model import training
from paco_core.reward_model.instructions import render_instruction
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery
from speed.gpu_trainer import CASES, trainer
from tests.support import reward_tiny, tiny_vlm
from tests.support.pretended_cuda import pretended

pytestmark = pytest.mark.thorough

#: Two epochs of a few seconds; one transition is trained on.
SHORT: dict[str, Any] = {
    "prompts_per_epoch": 2, "group_size": 2, "updates_per_epoch": 1, "rollout_batch": 4, "train_batch": 2,
    "sampling_steps": 2, "eval_steps": 1, "eval_seeds": [0],
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> Iterator[None]:
    """Each training collects garbage; what the modules hold need not be looked through each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.manual_seed(1)
    return {case: build(tmp_path_factory.mktemp(case) / "model") for case, (_, build, _) in CASES.items()}


def test_every_family_is_trained_here() -> None:
    assert {family for family, _, _ in CASES.values()} == set(FAMILIES)


#: The first two in `make test-all`, the others in `make faults`.
COMBINATIONS = [
    ("ppo", "bfloat16"),
    ("nft", "mixed"),
    pytest.param("ppo", "mixed", marks=pytest.mark.faults),
    pytest.param("nft", "bfloat16", marks=pytest.mark.faults),
]


@pytest.mark.parametrize(("loss", "dtype"), COMBINATIONS)
@pytest.mark.parametrize("case", CASES)
def test_a_family_trains_and_goes_on(models: dict[str, Path], tmp_path: Path, case: str, loss: str, dtype: str) -> None:
    rule = {**SHORT, **({"noise_steps": [0]} if loss == "ppo" else {})}
    with pretended():
        for epochs in (1, 2):
            policy_trainer = trainer(case, models[case], loss, dtype, "cuda", epochs, rule)
            outcome = policy_trainer.run(tmp_path / "out", tmp_path / "checkpoints")
            assert outcome.resumed_at == epochs - 1
        policy: Any = policy_trainer.learner.policy
        devices = {p.device for p in (*policy.transformer.parameters(), *policy.pipeline.vae.parameters())}
        assert devices == {torch.device("cuda:0")}
    assert outcome.rows[-1]["update/grad_norm"] > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_reward_trains_goes_on_and_judges(tmp_path: Path, dtype: str) -> None:
    base, examples = tiny_vlm.build(tmp_path / "tiny"), reward_tiny.pairs(6)
    with pretended():
        for epochs in (1, 2):
            rule = RewardParams.model_validate(
                {**reward_tiny.PARAMS, "device": "cuda", "dtype": dtype, "epochs": epochs}
            )
            report = training.train_reward_model(
                base, examples, examples, rule, tmp_path, tmp_path / "checkpoints", "code"
            )
        assert report.steps == 4
        scorer = Scorer(base, device="cuda", dtype=dtype)
        assert {p.device for p in scorer.network.model.parameters()} == {torch.device("cuda:0")}
        queries = [PairQuery(*e.images, render_instruction("theme", theme=str(n))) for n, e in enumerate(examples)]
        assert all(0 < float(score.value) < 1 for score in scorer.score(queries))
