"""The rollout: what it computes, what it keeps, and that a trained pass sees the same step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.rollout import Sampling, Trajectory, rollout
from paco_core.policies.base import NoiseKey
from tests.support.grpo_toys import ToyPolicy

SIZE = (32, 32)


def run(policy: ToyPolicy, samples: Sequence[tuple[int, int]], **settings: object) -> Trajectory:
    sampling = Sampling.for_policy(policy, SIZE, 5, 3.5, **{"noise_steps": [1], "noise_level": 0.7, **settings})  # type: ignore[arg-type]
    encoded = policy.encode(["one", "three"], 80)
    keys = [NoiseKey(f"p{row}", image, 1) for row, image in samples]
    return rollout(policy, encoded, [row for row, _ in samples], keys, sampling)


GROUPS = [(row, image) for row in range(2) for image in range(3)]


def test_only_noise_steps_are_kept_and_each_step_is_one_pass() -> None:
    policy = ToyPolicy()
    trajectory = run(policy, GROUPS, noise_steps=[1, 2])
    assert [noisy.step for noisy in trajectory.noisy_steps] == [1, 2]
    assert policy.rows["sampled"] == 5 * len(GROUPS)
    assert torch.equal(trajectory.noisy_steps[0].after, trajectory.noisy_steps[1].before)
    assert trajectory.noisy_steps[0].mean is None and not trajectory.latents.is_inference()


@pytest.mark.parametrize("dynamics", sorted(DYNAMICS))
def test_trained_pass_finds_the_log_probability_of_the_rollout(dynamics: str) -> None:
    policy = ToyPolicy()
    sampling = Sampling.for_policy(policy, SIZE, 5, 3.5, noise_steps=[2], noise_level=0.5, dynamics=dynamics)
    encoded = policy.encode(["one", "three"], 80)
    rows = [row for row, _ in GROUPS]
    noisy_step = rollout(policy, encoded, rows, [NoiseKey("p", i, 0) for i in range(6)], sampling).noisy_steps[0]
    for start in (0, 2, 4):  # other batches than the rollout's
        part = noisy_step.take(range(start, start + 2))
        step = sampling.steps[2]
        v = policy.velocity(part.before, step.sigma, encoded.take(rows[start : start + 2]), 3.5, SIZE)
        log_prob = DYNAMICS[dynamics].log_prob(part.after, DYNAMICS[dynamics].transition(part.before, v, step))
        assert (log_prob - part.log_prob).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        ({"noise_steps": [1, 3]}, {1, 3}),
        ({"noise_steps": [1, 3], "train_steps": [3]}, {3}),
        ({"noise_steps": [1], "keeps": frozenset()}, set()),
    ],
)
def test_only_trained_steps_are_computed_as_a_trained_pass_is(settings: dict[str, object], trained: set[int]) -> None:
    class Watched(ToyPolicy):
        @contextmanager
        def inference_precision(self) -> Iterator[None]:
            inference_steps.append(self.rows["sampled"] // len(GROUPS))
            yield

    inference_steps: list[int] = []
    run(Watched(), GROUPS, **settings)
    assert set(range(5)) - set(inference_steps) == trained and len(inference_steps) == len(set(inference_steps))


def test_noise_depends_on_its_key_only() -> None:
    policy = ToyPolicy()
    together = run(policy, GROUPS).latents
    separate = torch.cat([run(policy, [sample]).latents for sample in GROUPS])
    assert torch.allclose(together, separate, atol=1e-6)
    assert not torch.allclose(together[0], together[1])


def test_shared_noise_runs_the_common_steps_once_a_prompt() -> None:
    shared, single = ToyPolicy(), ToyPolicy()
    trajectory = run(shared, GROUPS, noise_steps=[2], shared_noise=True)
    assert shared.rows["sampled"] == 3 * 2 + 2 * len(GROUPS)  # the noisy step's pass is shared, its noise is not
    before = trajectory.noisy_steps[0].before
    assert torch.equal(before[0], before[2]) and not torch.equal(before[0], before[3])
    assert not torch.allclose(trajectory.latents[0], trajectory.latents[1])
    separate = torch.cat([run(single, [sample], noise_steps=[2], shared_noise=True).latents for sample in GROUPS])
    assert torch.allclose(trajectory.latents, separate, atol=1e-6)


def test_keys_differ_in_every_part() -> None:
    key = NoiseKey("p", 0, 0)
    other_keys = [replace(key, prompt_id="q"), replace(key, image=1), replace(key, seed=1), replace(key, step=0)]
    assert len({k.generator_seed for k in (key, *other_keys)}) == 5
