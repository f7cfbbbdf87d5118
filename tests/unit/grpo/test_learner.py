"""The learner: the ratio before the first update, and which samples are passed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paco_core.config.params import PolicyLora
from paco_core.grpo.learner import Learner
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.grpo.sampling import Bucket, Experience
from paco_core.grpo.trainer import Outcome, Reports
from paco_core.policies import base
from paco_core.policies.base import NoiseKey
from paco_core.rewards.base import RewardBatch
from tests.support import grpo_toys
from tests.support.grpo_toys import Brightness, ToyPolicy, recipe, record, trainer
from tests.support.tiny import TEXT_LENGTH
from tests.support.tiny_pipelines import qwen_image_edit

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


def train(out: Path, policy: ToyPolicy, said: list[str] | None = None, **changes: Any) -> Outcome:
    rule = recipe(**{"epochs": 1, "dtype": "bfloat16", "train_batch": 4, "eval_seeds": [0], **LARGE, **changes})
    reports = Reports(say=[].append if said is None else said.append)
    given = grpo_toys.trainer(policy=policy, recipe=rule, train=TRAIN, unseen=UNSEEN, reports=reports)
    return given.run(out, out / "checkpoint")


@pytest.mark.parametrize("spoilt", [{"swapped": True}, {"noise": 0.2}])
def test_another_velocity_stops_the_training_in_bfloat16(tmp_path: Path, spoilt: dict[str, Any]) -> None:
    policy = Spoilt(**spoilt)
    with pytest.raises(RuntimeError, match=r"more than 0.0003, and \d+% of samples are outside clip_range=0.0001"):
        train(tmp_path, policy)
    assert torch.equal(policy.b, torch.zeros(2, 4)), "no weight was changed"


def test_many_samples_outside_the_clip_are_logged_and_warned_of(tmp_path: Path) -> None:
    said: list[str] = []
    row = train(tmp_path, Spoilt(noise=0.03), said, max_ratio_gap=1.0, clip_range=1e-5).rows[1]
    assert 0.05 < row["update/first_clip_fraction"] <= 1 and row["update/ratio_gap"] > 1e-6
    (warning,) = [line for line in said if "outside" in line]
    assert warning.startswith("before the first update") and "old_log_prob: recomputed" in warning
    assert "update/first_clip_fraction" in (tmp_path / "training_log.csv").read_text()
    said.clear()
    row = train(tmp_path / "plain", ToyPolicy(), said).rows[1]
    assert row["update/first_clip_fraction"] == 0 and not any("outside" in line for line in said)


def test_the_share_is_of_the_first_updates_samples(tmp_path: Path) -> None:
    """Later updates move the ratio on purpose."""
    row = train(tmp_path, ToyPolicy(), clip_range=1e-6, learning_rate=0.1).rows[1]
    assert row["update/first_clip_fraction"] == 0 and row["update/clip_fraction"] > 0.3


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        folder = qwen_image_edit(tmp_path_factory.mktemp("qwen") / "model")
    policy: Any = base.load("qwen_image_edit", str(folder), "cpu", "bfloat16")
    policy.add_adapter(PolicyLora(rank=2, alpha=4), 0)
    return policy


@pytest.mark.parametrize("old", ["rollout", "recomputed"])
def test_recomputed_log_probabilities_leave_nothing_to_rounding(editor: Any, old: Any) -> None:
    """Qwen at guidance 4, 16 rolled out and 4 trained at a time: prompts of several lengths are padded differently."""
    size, prompts = (64, 64), ["a red cat", "two", "a frog with a hat on the beach and a kite"]
    pictures = [Image.new("RGB", size, colour) for colour in ("red", "green", "blue")]
    encoded = editor.encode(prompts, TEXT_LENGTH, pictures, [[size]] * 3)
    sampling = Sampling.for_policy(editor, size, 3, 4.0, noise_steps=[1], noise_level=1.0)
    rows = [place // 4 % 3 for place in range(16)]
    keys = [NoiseKey(f"p{row}", place, 0) for place, row in enumerate(rows)]
    step = rollout(editor, encoded, rows, keys, sampling).noisy_steps[0]
    assert step.log_prob is not None
    step = replace(step, log_prob=step.log_prob + 0.01)  # more than rounding, which some processors do not show
    settings = recipe(dtype="bfloat16", old_log_prob=old, train_batch=4, updates_per_epoch=1, max_ratio_gap=1.0)
    found = Experience(
        encoded, rows, keys, torch.ones(16).numpy(), [Bucket(sampling, torch.arange(16).numpy(), {1: step})]
    )
    metrics = Learner(editor, settings).learn(found)
    if old == "recomputed":
        assert (metrics["ratio_gap"], metrics["first_clip_fraction"]) == (0, 0)
    else:
        assert metrics["ratio_gap"] > 0.005, "the log-probabilities of the rollout are used"


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


def train_moved(out: Path, reward: Alike, **changes: Any) -> tuple[Moved, Outcome]:
    policy = Moved()
    rule = recipe(**{"epochs": 1, "eval_seeds": [0], "updates_per_epoch": 2, "train_steps": [1], **changes})
    given = trainer(policy=policy, recipe=rule, rewards={"brightness": reward}, max_failed_share=0.5)
    return policy, given.run(out, out / "checkpoint")


@pytest.mark.parametrize(
    ("changes", "trained"), [({}, 0), ({"loss": "grpo_guard"}, 0), (KL, SAMPLES), (NFT, SAMPLES), (NFT | KL, SAMPLES)]
)
def test_a_loss_passes_the_samples_that_it_learns_from(tmp_path: Path, changes: dict[str, Any], trained: int) -> None:
    policy, outcome = train_moved(tmp_path, Alike(), **changes)
    assert policy.rows["trained"] == outcome.rows[1]["update/trained"] == trained


@pytest.mark.parametrize("changes", [KL, NFT])
def test_a_sample_without_a_score_is_in_no_pass(tmp_path: Path, changes: dict[str, Any]) -> None:
    policy, outcome = train_moved(tmp_path, Alike(failing=4), **changes)
    failed = outcome.rows[1]["groups/failed_samples"]
    assert failed > 0 and policy.rows["trained"] == SAMPLES - failed


def test_kl_alone_draws_the_policy_back(tmp_path: Path) -> None:
    still, _ = train_moved(tmp_path / "without", Alike())
    drawn, outcome = train_moved(tmp_path / "with", Alike(), epochs=4, **KL)
    assert torch.equal(still.b, torch.full_like(still.b, 0.3))
    distances = [row["update/kl"] for row in outcome.rows[1:]]
    assert distances[-1] < distances[0] and drawn.b.abs().mean() < 0.3
