"""Learning from ranked pictures: the losses dpo and sft, on a toy policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from paco_core.data.preferences import Preference, Preferences
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.losses import PairErrors, dpo, sft
from paco_core.grpo.objectives import FORWARD_NOISE
from paco_core.grpo.prompt_split import PromptSplit, preferred
from paco_core.grpo.trainer import Outcome, Trainer
from paco_core.io.files import DataError
from paco_core.policies.base import NoiseKey
from tests.support import grpo_toys
from tests.support.grpo_toys import TRAIN, ToyEditor, ToyPolicy, recipe

STEPS = {"dynamics": "ode", "noise_steps": []}
SIZE = (32, 32)


def picture(name: str) -> Image.Image:
    """Bright pictures are the best, dark ones the worst; each prompt has its own."""
    level = 215 if name.startswith("best") else 40
    noise = np.random.default_rng(int(name.rpartition("p")[2])).integers(-20, 20, (32, 32, 3))
    return Image.fromarray((level + noise).astype(np.uint8))


PAIRS = Preferences({r.idx: Preference(f"best-{r.idx}", f"worst-{r.idx}") for r in TRAIN}, picture)


def offline(policy: ToyPolicy | None = None, preferences: Preferences = PAIRS, **changes: Any) -> Trainer:
    own = recipe(**{"loss": "dpo", "dpo": {"beta": 20.0}, "epochs": 2, "eval_every": 99, **STEPS, **changes})
    parts: dict[str, Any] = {}
    if isinstance(policy, ToyEditor):
        parts["reference"] = lambda record: [picture(f"worst-{record.idx}")]
    return grpo_toys.trainer(policy=policy or ToyPolicy(), recipe=own, preferences=preferences, **parts)


def run(out: Path, **changes: Any) -> tuple[Trainer, Outcome]:
    trainer = offline(**changes)
    return trainer, trainer.run(out, out / "checkpoint")


def test_dpo_by_hand() -> None:
    errors = PairErrors(*(torch.tensor([v]) for v in (0.30, 0.50, 0.40, 0.45)))
    inside = -0.5 * 8.0 * ((0.30 - 0.40) - (0.50 - 0.45))
    assert float(dpo(errors, 8.0)) == pytest.approx(-math.log(1.0 / (1.0 + math.exp(-inside))), rel=1e-6)
    assert float(errors.margin) == pytest.approx(0.15)
    assert float(sft(errors, 8.0)) == pytest.approx(0.30)


def test_dpo_lowers_the_error_of_the_best_picture_and_raises_that_of_the_worst() -> None:
    best, worst = (torch.full((3,), 0.4, requires_grad=True) for _ in range(2))
    fixed = torch.full((3,), 0.4)
    dpo(PairErrors(best, worst, fixed, fixed), 10.0).sum().backward()
    assert best.grad is not None and worst.grad is not None
    assert torch.allclose(best.grad, torch.full((3,), 0.25 * 10.0)), "beta / 2 times sigmoid(0)"
    assert torch.equal(worst.grad, -best.grad)


def plain_loss(trainer: Trainer, epoch: int, beta: float) -> float:
    """The mean loss of an epoch's first update, prompt by prompt and step by step, by the formula."""
    policy: Any = trainer.learner.policy
    experience, scores = trainer.epochs.gather(epoch)
    assert scores is None
    found = []
    for sample in range(len(experience.rows) // 2):  # of two updates
        record = TRAIN[experience.rows[sample]]
        for step in range(4):
            sigma = 1.0 - step / 4
            key = NoiseKey(record.idx, 0, epoch + 1, FORWARD_NOISE + step)
            noise = policy.noise(SIZE, [key])[0]
            sums = []
            for name in ("best", "worst"):
                clean = policy.encode_pictures([picture(f"{name}-{record.idx}")], SIZE)[0]
                given = ((1 - sigma) * clean + sigma * noise)[None]
                for adapter in ("default", "reference"):
                    with policy.using(adapter), torch.no_grad():
                        found_velocity = policy.velocity(given, sigma, experience.conditions([sample]), 3.5, SIZE)[0]
                    sums.append(float(((found_velocity - (noise - clean)) ** 2).mean()))
            best, best_reference, worst, worst_reference = sums
            inside = -0.5 * beta * ((best - best_reference) - (worst - worst_reference))
            found.append(math.log1p(math.exp(-inside)))
    return float(np.mean(found))


def test_the_objective_is_the_formula() -> None:
    trainer = offline(dpo={"beta": 3.0}, train_batch=3)
    policy: Any = trainer.learner.policy
    with torch.no_grad():
        policy.b.copy_(0.2 * torch.randn(2, 4, generator=torch.Generator().manual_seed(1)))
    wanted = plain_loss(trainer, 0, 3.0)
    assert abs(wanted - math.log(2)) > 0.01
    trainer.learner.params = trainer.recipe.model_copy(update={"updates_per_epoch": 2, "prompts_per_epoch": 4})
    experience, _ = trainer.epochs.gather(0)
    losses: list[float] = []
    backward = trainer.learner.updates.backward
    trainer.learner.updates.backward = lambda loss, counts=True: (losses.append(float(loss)), backward(loss))[1]  # type: ignore[method-assign,assignment]
    trainer.learner.learn(experience)
    assert sum(losses[: len(losses) // 2]) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({"loss": "dpo"}, {"trained": 2 * 4, "reference": 2 * 4}),
        ({"loss": "dpo", "train_steps": [0, 2]}, {"trained": 2 * 2, "reference": 2 * 2}),
        ({"loss": "sft"}, {"trained": 4}),
    ],
)
def test_only_the_needed_passes_are_run_and_nothing_is_rolled_out(
    tmp_path: Path, changes: dict[str, Any], passes: dict[str, int]
) -> None:
    policy, reward = ToyPolicy(), grpo_toys.Brightness()
    own = recipe(**{"epochs": 2, "eval_every": 99, **STEPS, **changes})
    trainer = grpo_toys.trainer(policy=policy, recipe=own, preferences=PAIRS, rewards={"brightness": reward})
    trainer.run(tmp_path, tmp_path / "checkpoint")
    evaluated = 2 * 2 * 3 * 2  # before and after x sizes x prompts x seeds
    expected = Counter({kind: 2 * 4 * count for kind, count in passes.items()})  # epochs x pairs
    expected["sampled"] = 4 * evaluated
    assert policy.rows == expected and reward.seen == evaluated


def test_no_pair_is_preferred_before_the_policy_differs_from_the_reference(tmp_path: Path) -> None:
    _, outcome = run(tmp_path, epochs=1, updates_per_epoch=1)
    assert outcome.rows[-1]["update/preferred"] == 0


@pytest.mark.parametrize(("loss", "gain"), [("dpo", 0.08), ("sft", 0.03)])
@pytest.mark.parametrize("editor", [False, True])
def test_it_learns_what_is_preferred(tmp_path: Path, loss: str, gain: float, editor: bool) -> None:
    policy = ToyEditor() if editor else ToyPolicy()
    changes = {"epochs": 30, "dpo": {"beta": 1.0}, "learning_rate": 0.1, "checkpoint_every": 30}
    _, outcome = run(tmp_path, policy=policy, loss=loss, **changes)
    for side in (32, 64):
        assert outcome.after[f"{side}/brightness"] > outcome.before[f"{side}/brightness"] + gain
    if loss == "dpo":
        assert outcome.rows[-1]["update/preferred"] > 0.9
        assert outcome.rows[-1]["update/loss"] < math.log(2)
    else:
        assert "update/preferred" not in outcome.rows[-1]


@pytest.mark.parametrize("loss", ["dpo", "sft"])
def test_it_goes_on_where_it_left_off(tmp_path: Path, loss: str) -> None:
    whole, first = run(tmp_path / "whole", loss=loss, epochs=4)
    run(tmp_path / "cut", loss=loss, epochs=2)
    resumed, outcome = run(tmp_path / "cut", loss=loss, epochs=4)
    assert outcome.resumed_at == 2
    assert grpo_toys.figures(outcome)[1:] == grpo_toys.figures(first)[1:]
    for name, tensor in whole.learner.tensors().items():
        assert torch.equal(tensor, resumed.learner.tensors()[name]), name


def test_the_reference_is_the_policy_that_training_starts_from(tmp_path: Path) -> None:
    _, outcome = run(tmp_path / "first", epochs=4)
    start = tmp_path / "start"
    start.mkdir()
    save_file(load_file(tmp_path / "first" / "adapter" / "adapter.safetensors"), start / "adapter.safetensors")
    for begins in (None, str(start)):
        trainer = offline(updates_per_epoch=1, start=begins)
        experience, _ = trainer.epochs.gather(0)
        assert trainer.learner.learn(experience)["loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert outcome.rows[-1]["update/loss"] != pytest.approx(math.log(2), rel=1e-3)


def test_other_pictures_are_another_training() -> None:
    worse = Preferences(PAIRS.pairs, lambda name: picture(name).rotate(90))
    assert offline(preferences=worse).key != offline().key == offline().key


@pytest.mark.parametrize("loss", ["dpo", "sft"])
def test_ranked_images_keep_their_proportions(loss: str) -> None:
    """Of as many pixels as a training image; a wide image in a square would be squashed."""

    def read(name: str) -> Image.Image:
        return picture(name).resize((256, 64) if name.endswith("0") else (64, 64))

    trainer = offline(loss=loss, preferences=Preferences(PAIRS.pairs, read), prompts_per_epoch=8, train_size=64)
    experience, _ = trainer.epochs.gather(0)
    sizes = {
        TRAIN[experience.rows[place]].idx: bucket.sampling.size
        for bucket in experience.buckets
        for place in bucket.samples
    }
    assert sizes == {record.idx: (64, 64) for record in TRAIN} | {"p0": (32, 128)}
    assert math.isfinite(trainer.learner.learn(experience)["loss"])


EDIT = EditRecord(**{**TRAIN[0].model_dump(), "layout": "1x1", "reference": "r", "part": "train"})
WIDE = {"best": (256, 64), "worst": (256, 64)}


@pytest.mark.parametrize(
    ("sizes", "train", "changes"),
    [
        ({**WIDE, "worst": (64, 256)}, TRAIN, {}),
        (WIDE, TRAIN, {"record_size": "exact"}),
        (WIDE, TRAIN, {"record_size": "ignore"}),
        (WIDE, [EDIT], {"prompts_per_epoch": 1, "updates_per_epoch": 1}),
    ],
)
def test_ranked_images_of_other_proportions_are_refused(
    sizes: dict[str, tuple[int, int]], train: Sequence[PromptRecord], changes: dict[str, Any]
) -> None:
    preferences = Preferences(PAIRS.pairs, lambda name: picture(name).resize(sizes[name.partition("-")[0]]))
    rule = recipe(loss="dpo", **STEPS, **changes)
    with pytest.raises(DataError, match="prompt p0: its best image best-p0 has 256 x 64 px"):
        grpo_toys.trainer(recipe=rule, preferences=preferences, train=train)


def test_prompts_without_a_pair_are_not_trained_on() -> None:
    two = Preferences(dict(list(PAIRS.pairs.items())[:2]), picture)
    split = PromptSplit(TRAIN, grpo_toys.UNSEEN)
    assert [record.idx for record in preferred(split, two).trained] == ["p0", "p1"]
    with pytest.raises(DataError, match="none of 8 training prompts has a best and a worst picture: 0 prompts"):
        preferred(split, Preferences({}, picture))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old_log_prob": "recomputed"}, "loss dpo uses no log-probabilities"),
        ({"kl": {"beta": 0.1}}, "loss dpo takes no KL"),
        ({"train_steps": [4]}, r"not among the sampling steps; choose from \[0, 1, 2, 3\]"),
        ({"loss": "nft", "preferences": "votes"}, "learns from its own pictures.*choose loss dpo or sft"),
        ({"dpo": {"beta": 0}}, "greater than 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**{"loss": "dpo", **STEPS, **changes})
