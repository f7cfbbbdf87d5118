"""Which passes a loss runs, what it keeps, and that each loss learns, on a toy policy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from paco_core.grpo import objectives
from paco_core.grpo.learner import Learner
from paco_core.grpo.losses import OLD_DECAYS
from paco_core.grpo.objectives import FORWARD_NOISE, TransitionObjective, _advantages
from paco_core.grpo.prompt_split import noise_steps_of_epoch
from paco_core.grpo.sampling import Bucket, Experience
from paco_core.grpo.trainer import Outcome, Trainer
from tests.support import grpo_toys
from tests.support.grpo_toys import ToyPolicy, recipe, record

TRAIN, UNSEEN = [record(n) for n in range(8)], [record(n) for n in range(20, 23)]
SAMPLES = 2 * 4 * 6  # epochs x prompts x group
NFT = {"loss": "nft", "nft": {"mix": 0.5}}


class Spy(Learner):
    """Remembers what each epoch's sampling left."""

    seen: list[Experience]

    def learn(self, experience: Experience) -> Any:
        self.seen = [*getattr(self, "seen", []), experience]
        return super().learn(experience)


def train(
    out: Path,
    monkeypatch: pytest.MonkeyPatch | None = None,
    rule: dict[str, Any] | None = None,
    policy: ToyPolicy | None = None,
    **changes: Any,
) -> tuple[Trainer, Outcome]:
    if monkeypatch is not None:
        monkeypatch.setattr("paco_core.grpo.recipe.Learner", Spy)
    own = recipe(**{"epochs": 2, "eval_every": 99, **changes, **(rule or {})})
    trainer = grpo_toys.trainer(policy=policy or ToyPolicy(), recipe=own, train=TRAIN, unseen=UNSEEN)
    return trainer, trainer.run(out, out / "checkpoint")


def buckets(trainer: Trainer) -> list[Bucket]:
    learner: Any = trainer.learner
    return [bucket for experience in learner.seen for bucket in experience.buckets]


@pytest.mark.parametrize(
    ("changes", "rule", "passes"),
    [
        ({}, {}, {"trained": 1}),
        ({"loss": "grpo_guard"}, {}, {"trained": 1}),
        ({"old_log_prob": "recomputed"}, {}, {"trained": 1, "sampled": 1}),
        ({"kl": {"beta": 0.1}}, {}, {"trained": 1, "reference": 1}),
        ({}, {"noise_steps": [0, 1, 2]}, {"trained": 3}),
        ({}, {"noise_steps": [0, 1, 2], "train_steps": [2]}, {"trained": 1}),
        ({}, {"noise_steps": [0, 1, 2], "num_noise_steps": 2}, {"trained": 2}),
        (NFT, {"dynamics": "ode", "noise_steps": []}, {"trained": 4, "old": 4}),
        (NFT, {"dynamics": "ode", "noise_steps": [], "train_steps": [0, 2]}, {"trained": 2, "old": 2}),
        ({**NFT, "kl": {"beta": 0.1}}, {"train_steps": [1]}, {"trained": 1, "old": 1, "reference": 1}),
    ],
)
def test_only_the_passes_that_a_loss_needs_are_run(
    tmp_path: Path, changes: dict[str, Any], rule: dict[str, Any], passes: dict[str, int]
) -> None:
    policy = ToyPolicy()
    train(tmp_path, rule=rule, policy=policy, **changes)
    expected = Counter({kind: SAMPLES * count for kind, count in passes.items()})
    expected["old" if changes.get("loss") == "nft" else "sampled"] += 4 * SAMPLES
    expected["sampled"] += 4 * 2 * 2 * 3 * 2  # steps x before and after x sizes x prompts x seeds
    assert policy.rows == expected


@pytest.mark.parametrize(
    ("changes", "rule", "kept", "clean"),
    [
        ({}, {}, {"before", "after", "log_prob"}, False),
        ({"loss": "grpo_guard"}, {}, {"before", "after", "log_prob", "mean"}, False),
        ({"loss": "grpo_guard", "old_log_prob": "recomputed"}, {}, {"before", "after"}, False),
        (NFT, {}, set(), True),
    ],
)
def test_only_what_a_loss_declares_is_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    rule: dict[str, Any],
    kept: set[str],
    clean: bool,
) -> None:
    trainer, _ = train(tmp_path, monkeypatch, rule, **changes)
    for bucket in buckets(trainer):
        assert (bucket.clean is not None) == clean
        assert list(bucket.noisy_steps) == ([1] if kept else [])
        for step in bucket.noisy_steps.values():
            assert {n for n in ("before", "after", "log_prob", "mean") if getattr(step, n) is not None} == kept


@pytest.mark.parametrize("loss", ["ppo", "grpo_guard"])
def test_recomputed_log_probabilities_are_those_of_the_rollout(tmp_path: Path, loss: str) -> None:
    _, rollout = train(tmp_path / "rollout", loss=loss)
    _, recomputed = train(tmp_path / "recomputed", loss=loss, old_log_prob="recomputed")
    assert recomputed.rows[1]["update/ratio_gap"] == 0
    for name in ("reward/brightness", "update/grad_norm"):
        assert recomputed.rows[2][name] == pytest.approx(rollout.rows[2][name], rel=1e-4)


class Drifting(ToyPolicy):
    """Trains on other velocities than it samples with, as a model in another precision would."""

    def velocity(self, *args: Any) -> torch.Tensor:
        return super().velocity(*args) + (0.1 if torch.is_grad_enabled() else 0.0)


def test_a_ratio_other_than_one_before_the_update_stops_the_training(tmp_path: Path) -> None:
    policy = Drifting()
    with pytest.raises(RuntimeError, match=r"before the first update is .* more than 0.0003.*old_log_prob: recomputed"):
        train(tmp_path / "strict", policy=policy)
    assert torch.equal(policy.b, torch.zeros(2, 4))
    _, outcome = train(tmp_path / "lax", policy=Drifting(), max_ratio_gap=10.0)
    assert outcome.rows[1]["update/ratio_gap"] > 1e-4


def test_kl_holds_the_policy_back_and_is_told(tmp_path: Path) -> None:
    moved, told = [], []
    for beta in (0.0, 1e-3, 1e3):
        trainer, outcome = train(tmp_path / str(beta), kl={"beta": beta}, epochs=4, eval_every=99)
        policy: Any = trainer.learner.policy
        moved.append(float((policy.a @ policy.b).detach().norm()))
        told.append(outcome.rows[-1].get("update/kl"))
    assert told[0] is None and told[1] > 0 and told[1] > told[2] > 0
    assert moved[2] < 0.5 * moved[0]


@pytest.mark.parametrize(("decay", "share"), [("on_policy", 0.0), ("slow", 0.002), ("late", 0.0)])
def test_the_second_adapter_follows_by_its_schedule(tmp_path: Path, decay: str, share: float) -> None:
    trainer, _ = train(tmp_path, loss="nft", nft={"decay": decay}, epochs=2, checkpoint_every=1)
    policy: Any = trainer.learner.policy
    first = trainer.learner.objective.tensors()["b"]
    if share == 0.0:
        assert torch.equal(first, policy.b)
    else:
        assert not torch.equal(first, policy.b) and torch.allclose(first, policy.b, atol=0.01)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_slow_follower_moves_by_the_decay_of_each_finished_epoch(tmp_path: Path, epochs: int) -> None:
    """After epoch n: old <- 0.001 n old + (1 - 0.001 n) trained, computed from the weights that each epoch left."""
    given = grpo_toys.trainer(
        recipe=recipe(loss="nft", nft={"decay": "slow"}, epochs=epochs), train=TRAIN, unseen=UNSEEN
    )
    learner, left = given.learner, list[torch.Tensor]()
    expected, learn = learner.objective.tensors()["b"].clone(), learner.learn

    def learnt(experience: Experience) -> Any:
        health = learn(experience)
        left.append(learner.parameters["b"].detach().clone())
        return health

    learner.learn = learnt  # type: ignore[method-assign]
    given.run(tmp_path, tmp_path / "checkpoint")
    for number, trained in enumerate(left, start=1):
        expected = torch.lerp(expected, trained, 1.0 - 0.001 * number)
    assert len(left) == epochs and torch.equal(learner.objective.tensors()["b"], expected)


def test_advantages_are_clipped_on_both_sides() -> None:
    experience: Any = SimpleNamespace(advantages=np.array([-9.0, -5.0, 1.0, 9.0]))
    batch: Any = SimpleNamespace(samples=[3, 2, 1, 0])
    assert _advantages(experience, batch, 5.0, torch.device("cpu")).tolist() == [5.0, 1.0, -5.0, -5.0]


def test_decay_schedules() -> None:
    late = OLD_DECAYS["late"]
    assert [late.at(n) for n in (0, 74, 75, 77, 1000)] == pytest.approx([0, 0, 0, 0.015, 0.999])
    assert [OLD_DECAYS["slow"].at(n) for n in (1, 100, 900)] == pytest.approx([0.001, 0.1, 0.5])
    assert OLD_DECAYS["on_policy"].at(500) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"loss": "nft", "learning_rate": 0.05}, {"dynamics": "ode", "noise_steps": []}),
        ({"loss": "grpo_guard", "learning_rate": 0.3}, {"noise_steps": [0, 1, 2], "num_noise_steps": 1}),
        ({"loss": "ppo", "learning_rate": 0.3}, {"dynamics": "cps", "noise_level": 0.9}),
    ],
)
def test_every_loss_learns(tmp_path: Path, changes: dict[str, Any], rule: dict[str, Any]) -> None:
    _, outcome = train(tmp_path, rule=rule, epochs=25, group_size=12, eval_every=99, checkpoint_every=25, **changes)
    for side in (32, 64):
        assert outcome.after[f"{side}/brightness"] > outcome.before[f"{side}/brightness"] + 0.08


def test_noise_steps_are_drawn_anew_each_epoch() -> None:
    drawn = [tuple(noise_steps_of_epoch([0, 1, 2, 3], 2, epoch, seed=5)) for epoch in range(60)]
    assert len(set(drawn)) == 6 and all(a < b for a, b in drawn)
    assert np.bincount(np.array(drawn).ravel()).min() > 15
    assert noise_steps_of_epoch([3, 1], None, 7, 5) == [3, 1]
    assert drawn == [tuple(noise_steps_of_epoch([0, 1, 2, 3], 2, epoch, seed=5)) for epoch in range(60)]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"noise_steps": [1, 1]}, "name a step twice"),
        ({"noise_steps": []}, "'ode' has no noise"),
        ({"dynamics": "ode"}, "'ode' has no noise"),
        ({"num_noise_steps": 2}, "choose at most 1"),
        ({"noise_steps": [0, 1], "num_noise_steps": 1, "train_steps": [1]}, "leave train_steps null"),
    ],
)
def test_impossible_steps_are_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**rule)


@pytest.mark.parametrize(
    ("changes", "rule", "message"),
    [
        ({}, {"train_steps": [2]}, r"train_steps \[2\] are not among the noise steps; choose from \[1\]"),
        ({}, {"train_steps": []}, "train_steps"),
        (NFT, {"train_steps": [4]}, r"not among the sampling steps; choose from \[0, 1, 2, 3\]"),
        ({}, {"dynamics": "ode", "noise_steps": []}, "loss ppo learns from noisy steps"),
        ({**NFT, "old_log_prob": "recomputed"}, {}, "nft uses no log-probabilities"),
    ],
)
def test_steps_that_do_not_fit_the_loss_are_refused(
    changes: dict[str, Any], rule: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**rule, **changes)


@pytest.mark.parametrize(
    ("changes", "rule", "passes"),
    [
        ({}, {"noise_steps": [1]}, {"trained": (0, 1)}),
        ({"train_batch": 1}, {"noise_steps": [0, 2]}, {"trained": (1, 1)}),
        ({"old_log_prob": "recomputed"}, {}, {"trained": (0, 1), "more": (0, 1)}),
        ({"kl": {"beta": 0.1}}, {}, {"trained": (0, 1), "reference": (0, 1)}),
        (NFT, {"train_steps": [0]}, {"trained": (1, 0), "more": (1, 0)}),
    ],
)
def test_a_group_that_starts_from_one_noise_shares_the_trained_pass(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    rule: dict[str, Any],
    passes: dict[str, tuple[int, int]],
) -> None:
    policy, groups = ToyPolicy(), 2 * 4
    together, _ = train(tmp_path / "together", rule={**rule, "shared_noise": True}, policy=policy, **changes)
    plain, sampling = ToyPolicy(), {**rule, "train_steps": None, "shared_noise": True}
    train(tmp_path / "plain", rule=sampling, policy=plain)
    policy.rows["more"] = policy.rows["sampled"] + policy.rows["old"] - plain.rows["sampled"]  # than the rollout's
    for kind, (each, group) in passes.items():
        assert policy.rows[kind] == each * SAMPLES + group * groups, kind
    monkeypatch.setattr(TransitionObjective, "as_sampled", False)
    apart, _ = train(tmp_path / "apart", rule={**rule, "shared_noise": True}, **changes)
    for ours, theirs in zip(
        together.learner.policy.trainable().values(), apart.learner.policy.trainable().values(), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-5) and ours.abs().max() > 1e-3


def test_nft_draws_noise_anew_at_every_step_and_for_every_sample(tmp_path: Path) -> None:
    class Draws(ToyPolicy):
        def noise(self, size: Any, keys: Any) -> torch.Tensor:
            self.drawn = [*getattr(self, "drawn", []), *(key for key in keys if key.step >= FORWARD_NOISE)]
            return super().noise(size, keys)

    policy = Draws()
    train(tmp_path, policy=policy, epochs=1, rule={"dynamics": "ode", "noise_steps": []}, **NFT)
    assert len(policy.drawn) == len(set(policy.drawn)) == 4 * 6 * 4, "prompts x group x steps"


def test_nft_noises_clean_latents_as_the_forward_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """x_t = (1 - sigma) x_0 + sigma noise (arXiv 2210.02747): with other noise, x_t moves by sigma times the change."""

    class Noised(ToyPolicy):
        latents: list[tuple[torch.Tensor, float]]

        def velocity(self, latents: Any, sigma: float, *rest: Any) -> torch.Tensor:
            self.latents = [*getattr(self, "latents", []), (latents.detach(), sigma)]
            return super().velocity(latents, sigma, *rest)

    runs = []
    for value in (0.0, 2.0):
        monkeypatch.setattr(
            objectives, "_forward_noise",
            lambda _policy, _experience, batch, value=value: torch.full_like(batch.bucket.clean[batch.rows], value),
        )  # fmt: skip
        policy = Noised()
        train(tmp_path / str(value), policy=policy, epochs=1, rule={"dynamics": "ode", "noise_steps": []}, **NFT)
        runs.append(policy.latents)
    sampled = next(n for n, ((before, _), (after, _)) in enumerate(zip(*runs, strict=True)) if (before != after).any())
    (without, sigma), (moved, _) = runs[0][sampled], runs[1][sampled]
    assert sigma > 0 and torch.allclose(moved - without, torch.full_like(moved, 2.0 * sigma), atol=1e-6)
