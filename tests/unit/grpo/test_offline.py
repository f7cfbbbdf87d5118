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
from paco_core.grpo.objectives import MicroBatch
from paco_core.grpo.outcome import Outcome
from paco_core.grpo.prompt_split import PromptSplit, with_preferences
from paco_core.grpo.trainer import Trainer
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
    rule = recipe(**{"loss": "dpo", "dpo": {"beta": 20.0}, "epochs": 2, "eval_every": 99, **STEPS, **changes})
    parts: dict[str, Any] = {}
    if isinstance(policy, ToyEditor):
        parts["reference"] = lambda record: [picture(f"worst-{record.idx}")]
    return grpo_toys.trainer(policy=policy or ToyPolicy(), recipe=rule, preferences=preferences, **parts)


def run(out: Path, **changes: Any) -> tuple[Trainer, Outcome]:
    trainer = offline(**changes)
    return trainer, trainer.run(out, out / "checkpoint")


@pytest.mark.parametrize("loss", ["dpo", "sft"])
def test_the_objective_is_the_formula(loss: str) -> None:
    """Both pictures of a pair get the same noise, another one at each step and of each prompt."""
    trainer = offline(loss=loss, dpo={"beta": 3.0})
    policy: Any = trainer.learner.policy
    with torch.no_grad():
        policy.b.copy_(0.2 * torch.randn(2, 4, generator=torch.Generator().manual_seed(1)))
    experience, scores = trainer.epochs.gather(0)
    assert scores is None
    batch = MicroBatch(experience.buckets[0], 2, [[0], [1], [3]])
    terms, expected = trainer.learner.objective.terms(experience, batch), []
    for sample in batch.samples:
        idx, sigma = TRAIN[experience.rows[sample]].idx, 0.5
        noise = policy.noise(SIZE, [NoiseKey(idx, 0, 1, 1_000_000 + 2)])
        errors = []
        for name in (f"best-{idx}", f"worst-{idx}"):
            clean = policy.encode_images([picture(name)], SIZE)
            noised = (1 - sigma) * clean + sigma * noise
            for adapter in ("default", "reference") if loss == "dpo" else ("default",):
                with policy.using(adapter), torch.no_grad():
                    velocity = policy.velocity(noised, sigma, experience.conditions([sample]), 3.5, SIZE)
                errors.append(float(((velocity - (noise - clean)) ** 2).mean()))
        if loss == "dpo":
            best, best_reference, worst, worst_reference = errors
            inside = -0.5 * 3.0 * ((best - best_reference) - (worst - worst_reference))
            expected.append(math.log1p(math.exp(-inside)))
            assert bool(terms.metrics["preferred"][len(expected) - 1]) == (inside > 0) and abs(inside) > 1e-3
        else:
            expected.append(errors[0])
    assert terms.loss.tolist() == pytest.approx(expected, rel=1e-5)


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
    rule = recipe(**{"epochs": 2, "eval_every": 99, **STEPS, **changes})
    trainer = grpo_toys.trainer(policy=policy, recipe=rule, preferences=PAIRS, rewards={"brightness": reward})
    trainer.run(tmp_path, tmp_path / "checkpoint")
    evaluated = 2 * 2 * 3 * 2  # before and after x sizes x prompts x seeds
    expected = Counter({kind: 2 * 4 * count for kind, count in passes.items()})  # epochs x pairs
    expected["sampled"] = 4 * evaluated
    assert policy.rows == expected and reward.num_scored == evaluated


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
    uninterrupted, first = run(tmp_path / "whole", loss=loss, epochs=4)
    run(tmp_path / "cut", loss=loss, epochs=2)
    resumed, outcome = run(tmp_path / "cut", loss=loss, epochs=4)
    assert outcome.resumed_at == 2
    assert grpo_toys.figures(outcome)[1:] == grpo_toys.figures(first)[1:]
    for name, tensor in uninterrupted.learner.tensors().items():
        assert torch.equal(tensor, resumed.learner.tensors()[name]), name


def test_the_reference_is_the_policy_that_training_starts_from(tmp_path: Path) -> None:
    _, outcome = run(tmp_path / "first", epochs=4)
    start = tmp_path / "start"
    start.mkdir()
    save_file(load_file(tmp_path / "first" / "adapter" / "adapter.safetensors"), start / "adapter.safetensors")
    for begins in (None, str(start)):
        trainer = offline(updates_per_epoch=1, start=begins)
        experience, _ = trainer.epochs.gather(0)
        metrics = trainer.learner.learn(experience)
        assert metrics["loss"] == pytest.approx(math.log(2), rel=1e-6) and metrics["preferred"] == 0
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
    with pytest.raises(DataError, match="p0.*best-p0.*256 x 64"):
        grpo_toys.trainer(recipe=rule, preferences=preferences, train=train)


def test_prompts_without_a_pair_are_not_trained_on() -> None:
    two = Preferences(dict(list(PAIRS.pairs.items())[:2]), picture)
    split = PromptSplit(TRAIN, grpo_toys.UNSEEN)
    assert [record.idx for record in with_preferences(split, two).trained] == ["p0", "p1"]
    with pytest.raises(DataError, match="none of 8"):
        with_preferences(split, Preferences({}, picture))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old_log_prob": "recomputed"}, "dpo"),
        ({"kl": {"beta": 0.1}}, "dpo"),
        ({"train_steps": [4]}, r"choose from \[0, 1, 2, 3\]"),
        ({"loss": "nft", "preferences": "votes"}, "dpo or sft"),
        ({"dpo": {"beta": 0}}, "greater than 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**{"loss": "dpo", **STEPS, **changes})
