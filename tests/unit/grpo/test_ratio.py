"""The ratio before the first update: one bound, tied to the clip range, for training, promotion and Dagster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from paco_core.config import profiles
from paco_core.config.params import PolicyLora, PolicyRecipe, parse
from paco_core.grpo import checks
from paco_core.grpo.learner import Learner
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.grpo.sampling import Bucket, Experience
from paco_core.grpo.trainer import Outcome, Reports
from paco_core.io.check_report import CheckReport
from paco_core.operations import promote as promotion
from paco_core.policies import base
from paco_core.policies.base import NoiseKey
from paco_core.stages.policies import STAGE
from tests.support import grpo_toys
from tests.support.grpo_toys import ToyPolicy, recipe, record
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
    step = rollout(editor, encoded, rows, keys, sampling).kept[0]
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


def settings(**changes: Any) -> PolicyRecipe:
    return recipe(**{"dtype": "bfloat16", **changes})


@pytest.mark.parametrize(
    ("gap", "share", "changes", "passed", "severity"),
    [
        (1e-4, 0.0, {}, True, "ERROR"),
        (4e-4, 0.01, {}, False, "ERROR"),
        (4e-4, 0.01, {"dtype": "float32"}, False, "ERROR"),
        (4e-4, 0.0, {"clip_range": 1e-3}, True, "ERROR"),
        (4e-4, 0.01, {"max_ratio_gap": 1e-3}, True, "ERROR"),  # what training accepted
        (2.5e-4, 0.06, {}, False, "WARN"),
        (0.3, 1.0, {"loss": "nft"}, True, "ERROR"),
    ],
)
def test_the_check_accepts_what_training_does(
    gap: float, share: float, changes: dict[str, Any], passed: bool, severity: str
) -> None:
    rows = [{"update/ratio_gap": 0.0}, {"update/ratio_gap": gap, "update/first_clip_fraction": share}]
    report = checks.ratio_before_update(rows, settings(**changes))
    assert (report.passed, report.severity) == (passed, severity), report.description
    assert passed or "old_log_prob: recomputed" in report.description
    assert passed or severity == "WARN" or gap > checks.max_ratio_gap(settings(**changes))


def test_a_log_without_the_figure_fails() -> None:
    assert not checks.ratio_before_update([{}], settings()).passed


def test_promotion_and_dagster_ask_the_same(repository: Path, tmp_path: Path) -> None:
    """A run that trained within max_ratio_gap is promoted; one that did not blocks both."""
    (check,) = (check for check in STAGE.checks if check.name == "ratio_is_one_before_update")
    (shared,) = (check for check in STAGE.checks if check.name == "gain_is_shared")
    tree = profiles.resolve(repository, "storybook")
    log = tmp_path / "data" / "policies" / "flux_t2is" / "training_log.csv"
    log.parent.mkdir(parents=True)
    log.write_text("epoch,eval/64/panel_diversity,update/ratio_gap\n0,0.3,\n1,0.3,0.02\n")

    def gate(limit: float | None) -> CheckReport:
        tree["policies"]["defaults"]["max_ratio_gap"] = limit
        return promotion.gates(tmp_path, parse(tree), "flux_t2is", log.parent)[1]

    assert not gate(None).passed and gate(0.03).passed
    (tmp_path / "params.yaml").write_text(json.dumps(tree))
    assert [report.severity for report in check.reports(tmp_path, "flux_t2is")] == ["ERROR"]
    assert [report.severity for report in shared.reports(tmp_path, "flux_t2is")] == ["WARN"], "it stops promotion alone"


@pytest.mark.parametrize("profile", ["storybook", "paper", "published", "one_gpu", "gpu_24gb", "klein"])
def test_every_profile_bounds_the_gap_by_its_clip_range(repository: Path, profile: str) -> None:
    for rule in parse(profiles.resolve(repository, profile)).policies.recipes.values():
        assert checks.max_ratio_gap(rule) == pytest.approx(3 * rule.clip_range)
