"""Objectives: the passes of each loss, the tensors that it keeps, and its training on a toy policy."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from paco_core.grpo.objectives import MicroBatch, TransitionObjective
from paco_core.grpo.outcome import Outcome
from paco_core.grpo.prompt_split import noise_steps_of_epoch
from paco_core.grpo.sampling import Experience
from paco_core.grpo.trainer import Trainer
from tests.support import grpo_toys
from tests.support.grpo_toys import ToyPolicy, recipe, record
from tests.unit.grpo.test_dynamics import Array, gaussian_log_density, paper_transition
from tests.unit.grpo.test_losses import clipped, plain_nft

TRAIN, UNSEEN = [record(n) for n in range(8)], [record(n) for n in range(20, 23)]
SAMPLES = 2 * 4 * 6  # epochs x prompts x group
NFT = {"loss": "nft", "nft": {"mix": 0.5}}
ODE: dict[str, Any] = {"dynamics": "ode", "noise_steps": []}


def train(out: Path, policy: ToyPolicy | None = None, **changes: Any) -> tuple[Trainer, Outcome]:
    settings = recipe(**{"epochs": 2, "eval_every": 99, **changes})
    trainer = grpo_toys.trainer(policy=policy or ToyPolicy(), recipe=settings, train=TRAIN, unseen=UNSEEN)
    return trainer, trainer.run(out, out / "checkpoint")


def gather(**changes: Any) -> tuple[Any, Experience, MicroBatch]:
    """An objective, a rollout with advantages and a mask, and four of its samples; the policy moved since."""
    trainer = grpo_toys.trainer(recipe=recipe(**changes), train=TRAIN, unseen=UNSEEN)
    experience, _ = trainer.epochs.gather(0)
    policy: Any = trainer.learner.policy
    with torch.no_grad():
        policy.b.copy_(0.1 * torch.randn(2, 4, generator=torch.Generator().manual_seed(1)))
    rng = np.random.default_rng(0)
    experience = experience.with_advantages(rng.uniform(-9.0, 9.0, 24), np.arange(24) % 2)
    return trainer.learner.objective, experience, MicroBatch(experience.buckets[0], 1, [[0], [3], [7], [20]])


def velocity_of(
    objective: Any, experience: Experience, batch: MicroBatch, latents: torch.Tensor, adapter: Any
) -> Array:
    sampling, condition = batch.bucket.sampling, experience.conditions(batch.samples)
    with objective.policy.using(adapter), torch.no_grad():
        sigma = sampling.steps[batch.step].sigma
        v = objective.policy.velocity(latents, sigma, condition, sampling.guidance, sampling.size)
    return np.asarray(v.double())


@pytest.mark.parametrize("kl", [{"beta": 0.0}, {"beta": 2.0, "form": "exact"}, {"beta": 2.0, "form": "paper"}])
def test_the_objective_of_transitions_is_the_formula(kl: dict[str, Any]) -> None:
    """The clipped loss, of advantages up to 5, and the weighted KL to the bare model where the mask is 1."""
    objective, experience, batch = gather(kl=kl, clip_range=0.01)
    noisy, step = batch.bucket.noisy_steps[1].take(batch.rows), batch.bucket.sampling.steps[1]
    before, after, old = (np.asarray(part.double()) for part in (noisy.before, noisy.after, noisy.log_prob))
    velocities = [velocity_of(objective, experience, batch, noisy.before, adapter) for adapter in ("default", None)]
    (mean, std), (reference, _) = (paper_transition("flow_sde", before, v, step) for v in velocities)
    ratio = np.exp(gaussian_log_density(after, mean, std) - old)
    expected = clipped(ratio, np.clip(experience.advantages[batch.samples], -5, 5), 0.01)
    variance = std**2 / (step.sigma - step.sigma_next) if kl.get("form") == "paper" else std**2
    distance = ((mean - reference) ** 2).mean(axis=(1, 2)) / (2 * variance)
    expected += kl["beta"] * distance * (np.array(batch.samples) % 2)
    terms = objective.terms(experience, batch)
    assert np.abs(ratio - 1).max() > 0.01
    np.testing.assert_allclose(terms.loss.detach(), expected, rtol=1e-4)
    np.testing.assert_allclose(terms.metrics["ratio"], ratio, rtol=1e-4)
    if kl["beta"]:
        np.testing.assert_allclose(terms.metrics["kl"], distance, rtol=1e-4)


@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_the_objective_of_the_forward_process_is_the_formula(beta: float) -> None:
    """x_t = (1 - sigma) x_0 + sigma noise, with other noise at each step and of each sample."""
    objective, experience, batch = gather(loss="nft", nft={"mix": 0.3}, kl={"beta": beta}, **ODE)
    sampling, clean = batch.bucket.sampling, batch.bucket.clean[batch.rows]  # type: ignore[index]
    sigma, policy = sampling.steps[1].sigma, objective.policy
    keys = [replace(experience.keys[sample], step=1_000_000 + 1) for sample in batch.samples]
    assert len(set(keys)) == 4
    noised = (1 - sigma) * clean + sigma * policy.noise(sampling.size, keys)
    new, old, bare = (velocity_of(objective, experience, batch, noised, name) for name in ("default", "old", None))
    advantages = np.clip(experience.advantages[batch.samples], -5, 5)
    clean, noised = np.asarray(clean.double()), np.asarray(noised.double())
    distance = ((new - bare) ** 2).mean(axis=(1, 2)) * (np.array(batch.samples) % 2)
    expected = plain_nft(clean, noised, new, old, sigma, advantages, 5.0, 0.3)[0] + beta * distance
    loss = objective.terms(experience, batch).loss
    assert np.abs(new - old).max() > 0.01 and bool(distance.any())
    np.testing.assert_allclose(loss.detach(), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, {"trained": 1}),
        ({"loss": "grpo_guard"}, {"trained": 1}),
        ({"old_log_prob": "recomputed"}, {"trained": 1, "sampled": 1}),
        ({"kl": {"beta": 0.1}}, {"trained": 1, "reference": 1}),
        ({"noise_steps": [0, 1, 2]}, {"trained": 3}),
        ({"noise_steps": [0, 1, 2], "train_steps": [2]}, {"trained": 1}),
        ({"noise_steps": [0, 1, 2], "num_noise_steps": 2}, {"trained": 2}),
        ({**NFT, **ODE}, {"trained": 4, "old": 4}),
        ({**NFT, **ODE, "train_steps": [0, 2]}, {"trained": 2, "old": 2}),
        ({**NFT, "kl": {"beta": 0.1}, "train_steps": [1]}, {"trained": 1, "old": 1, "reference": 1}),
    ],
)
def test_only_the_passes_that_a_loss_needs_are_run(
    tmp_path: Path, changes: dict[str, Any], passes: dict[str, int]
) -> None:
    policy = ToyPolicy()
    train(tmp_path, policy, **changes)
    expected = Counter({kind: SAMPLES * count for kind, count in passes.items()})
    expected["old" if changes.get("loss") == "nft" else "sampled"] += 4 * SAMPLES
    expected["sampled"] += 4 * 2 * 2 * 3 * 2  # steps x before and after x sizes x prompts x seeds
    assert policy.rows == expected


@pytest.mark.parametrize(
    ("changes", "tensors", "clean"),
    [
        ({}, {"before", "after", "log_prob"}, False),
        ({"loss": "grpo_guard"}, {"before", "after", "log_prob", "mean"}, False),
        ({"loss": "grpo_guard", "old_log_prob": "recomputed"}, {"before", "after"}, False),
        (NFT, set(), True),
    ],
)
def test_only_what_a_loss_declares_is_kept(changes: dict[str, Any], tensors: set[str], clean: bool) -> None:
    _, experience, _ = gather(**changes)
    for bucket in experience.buckets:
        assert (bucket.clean is not None) == clean and list(bucket.noisy_steps) == ([1] if tensors else [])
        for step in bucket.noisy_steps.values():
            assert {n for n in ("before", "after", "log_prob", "mean") if getattr(step, n) is not None} == tensors


@pytest.mark.parametrize("loss", ["ppo", "grpo_guard"])
def test_recomputed_log_probabilities_are_those_of_the_rollout(tmp_path: Path, loss: str) -> None:
    _, rollout = train(tmp_path / "rollout", loss=loss)
    _, recomputed = train(tmp_path / "recomputed", loss=loss, old_log_prob="recomputed")
    assert recomputed.rows[1]["update/ratio_gap"] == 0
    objective, experience, batch = gather(loss=loss, old_log_prob="recomputed")  # its policy moved after the rollout
    with pytest.raises(ValueError, match="prepare"):
        objective.terms(experience, batch)
    objective.prepare(experience, [batch])
    assert objective.terms(experience, batch).metrics["ratio"].tolist() == [1.0] * 4
    for name in ("reward/brightness", "update/grad_norm"):
        assert recomputed.rows[2][name] == pytest.approx(rollout.rows[2][name], rel=1e-4)


@pytest.mark.parametrize(("decay", "rate"), [("on_policy", 0.0), ("slow", 0.001)])
def test_the_second_adapter_moves_by_the_decay_of_each_finished_epoch(tmp_path: Path, decay: str, rate: float) -> None:
    """After epoch n: old <- rate n old + (1 - rate n) trained, computed from the weights that each epoch left."""
    policy_trainer = grpo_toys.trainer(
        recipe=recipe(loss="nft", nft={"decay": decay}, epochs=2), train=TRAIN, unseen=UNSEEN
    )
    learner, left = policy_trainer.learner, list[torch.Tensor]()
    expected, learn = learner.objective.tensors()["b"].clone(), learner.learn

    def learnt(experience: Experience) -> Any:
        health = learn(experience)
        left.append(learner.parameters["b"].detach().clone())
        return health

    learner.learn = learnt  # type: ignore[method-assign]
    policy_trainer.run(tmp_path, tmp_path / "checkpoint")
    for number, trained in enumerate(left, start=1):
        expected = torch.lerp(expected, trained, 1.0 - rate * number)
    assert len(left) == 2 and torch.equal(learner.objective.tensors()["b"], expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "nft", "learning_rate": 0.05, **ODE},
        {"loss": "grpo_guard", "learning_rate": 0.3, "noise_steps": [0, 1, 2], "num_noise_steps": 1},
        {"loss": "ppo", "learning_rate": 0.3, "dynamics": "cps", "noise_level": 0.9},
    ],
    ids=lambda changes: changes["loss"],
)
def test_every_loss_learns(tmp_path: Path, changes: dict[str, Any]) -> None:
    _, outcome = train(tmp_path, epochs=25, group_size=12, checkpoint_every=25, **changes)
    for side in (32, 64):
        assert outcome.after[f"{side}/brightness"] > outcome.before[f"{side}/brightness"] + 0.08


def test_noise_steps_are_drawn_anew_each_epoch() -> None:
    sampled_steps = [tuple(noise_steps_of_epoch([0, 1, 2, 3], 2, epoch, seed=5)) for epoch in range(60)]
    assert len(set(sampled_steps)) == 6 and all(a < b for a, b in sampled_steps)
    assert np.bincount(np.array(sampled_steps).ravel()).min() > 15
    assert noise_steps_of_epoch([3, 1], None, 7, 5) == [3, 1]
    assert sampled_steps == [tuple(noise_steps_of_epoch([0, 1, 2, 3], 2, epoch, seed=5)) for epoch in range(60)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise_steps": [1, 1]}, "twice"),
        ({"noise_steps": []}, "ode"),
        ({"dynamics": "ode"}, "ode"),
        (ODE, "ppo"),
        ({"num_noise_steps": 2}, "at most 1"),
        ({"noise_steps": [0, 1], "num_noise_steps": 1, "train_steps": [1]}, "train_steps"),
        ({"train_steps": [2]}, r"choose from \[1\]"),
        ({"train_steps": []}, "train_steps"),
        ({**NFT, "train_steps": [4]}, r"choose from \[0, 1, 2, 3\]"),
        ({**NFT, "old_log_prob": "recomputed"}, "nft"),
    ],
)
def test_steps_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**changes)


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({"noise_steps": [1]}, {"trained": (0, 1)}),
        ({"train_batch": 1, "noise_steps": [0, 2]}, {"trained": (1, 1)}),
        ({"old_log_prob": "recomputed"}, {"trained": (0, 1), "more": (0, 1)}),
        ({"kl": {"beta": 0.1}}, {"trained": (0, 1), "reference": (0, 1)}),
        ({**NFT, "train_steps": [0]}, {"trained": (1, 0), "more": (1, 0)}),
    ],
)
def test_a_group_that_starts_from_one_noise_shares_the_trained_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], passes: dict[str, tuple[int, int]]
) -> None:
    policy, plain, groups = ToyPolicy(), ToyPolicy(), 2 * 4
    together, _ = train(tmp_path / "together", policy, shared_noise=True, **changes)
    train(tmp_path / "plain", plain, shared_noise=True, noise_steps=changes.get("noise_steps", [1]))
    policy.rows["more"] = policy.rows["sampled"] + policy.rows["old"] - plain.rows["sampled"]  # than the rollout's
    for kind, (calls, group) in passes.items():
        assert policy.rows[kind] == calls * SAMPLES + group * groups, kind
    monkeypatch.setattr(TransitionObjective, "as_sampled", False)
    apart, _ = train(tmp_path / "apart", shared_noise=True, **changes)
    for ours, theirs in zip(*(run.learner.policy.trainable().values() for run in (together, apart)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5) and ours.abs().max() > 1e-3
