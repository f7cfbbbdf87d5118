"""PaCo-GRPO from top to bottom: sample groups, reward them, compare within the group, move the policy.

    python examples/grpo_loop.py

A tiny policy paints four panels of one colour each. Two rewards, plain functions of pictures and prompts, ask for the
colour that the prompt names and for panels that are alike. Both rise within seconds, because they are easy to please:
this shows how the algorithm works, not what it does to a large model. Rollout, dynamics, aggregation, advantages and
loss are the library's own; the loop around them is that of ``paco_core/grpo/trainer.py`` (sample, score) and
``paco_core/grpo/learner.py`` (learn), without checkpoints, several processes, and evaluation on unseen prompts. Two
things are simpler here: each update sees all samples of an epoch, where the library's take a share each, and no
advantage is clipped.

Letters at the end of a tensor's name are its dimensions: N samples (prompts x group), L tokens (one a panel), C
channels, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations

import numpy as np
import torch
from PIL import Image

from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.advantages import advantages
from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.losses import LOSSES, LossInputs
from paco_core.grpo.rollout import Sampling, Trajectory, rollout
from paco_core.policies.base import NoiseKey, Size
from paco_core.policies.encoded import Condition, Encoded
from paco_core.rewards.aggregation import aggregate

SEED = 0
EPOCHS = 60
GROUP = 16  # pictures of one prompt that are compared with each other
STEPS = 6  # of sampling
NOISE_STEPS = (0, 1, 2)  # the steps that are random, and therefore trained
NOISE_LEVEL = 0.7
LEARNING_RATE = 3e-3
CLIP_RANGE = 0.2
UPDATES = 2  # per epoch, each on all samples: from the second one on, the ratio differs from one
GUIDANCE = 1.0  # the tiny policy has none

PANEL = 16  # pixels
SIZE: Size = (2 * PANEL, 2 * PANEL)
COLOURS = {"red": (230, 40, 40), "green": (40, 180, 60), "blue": (50, 70, 220), "yellow": (235, 215, 50)}


# ---------------------------------------------------------------------------------------------------- prompts
def prompt(colour: str) -> PromptRecord:
    """A prompt in the public T2IS format: four panels, two by two."""
    return PromptRecord(
        idx=colour, prompt=f"Four {colour} panels.", height=SIZE[0], width=SIZE[1], layout="2x2", theme=colour,
        category="Colour", task_name="Same colour", criteria={},
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------- rewards
def follows(images: Sequence[Image.Image], records: Sequence[PromptRecord]) -> list[float]:
    """1 - root mean square distance of the pixels of an image from the colour in its prompt."""
    pixels = [np.asarray(image, dtype=float) for image in images]
    return [1 - _rms(image - COLOURS[record.theme]) for image, record in zip(pixels, records, strict=True)]


def consistency(images: Sequence[Image.Image], records: Sequence[PromptRecord]) -> list[float]:
    """1 - root mean square distance of two panels, mean over the pairs of panels: the consistency of a set."""
    sets = [split_grid(image, record.layout) for image, record in zip(images, records, strict=True)]
    arrays = [[np.asarray(panel, dtype=float) for panel in panels] for panels in sets]
    return [1 - float(np.mean([_rms(a - b) for a, b in combinations(panels, 2)])) for panels in arrays]


def _rms(difference: np.ndarray) -> float:
    return float(np.sqrt(np.mean((difference / 255) ** 2)))


Reward = Callable[[Sequence[Image.Image], Sequence[PromptRecord]], Sequence[float]]
REWARDS: dict[str, Reward] = {"follows": follows, "consistency": consistency}
WEIGHTS = {"follows": 1.0, "consistency": 1.0}


# ---------------------------------------------------------------------------------------------------- policy
class TinyPolicy(torch.nn.Module):
    """A flow model with one token per panel, whose three channels become the panel's colour.

    Its last layer is initialized to zero, so an untrained policy returns its noise.
    """

    def __init__(self) -> None:
        super().__init__()
        features = 3 + 3 + len(COLOURS) + 4 + 1  # latent of the panel, mean of all panels, prompt, panel index, sigma
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(features, 64), torch.nn.SiLU(), torch.nn.Linear(64, 64), torch.nn.SiLU()
        )
        self.last = torch.nn.Linear(64, 3)
        torch.nn.init.zeros_(self.last.weight)
        torch.nn.init.zeros_(self.last.bias)

    def encode(self, records: Sequence[PromptRecord]) -> Encoded:
        """A one-hot vector for the colour of each prompt."""
        one_hot = torch.eye(len(COLOURS))
        return Encoded([{"prompt_embeds": one_hot[list(COLOURS).index(record.theme)]} for record in records], "cpu")

    def sigmas(self, size: Size, steps: int) -> torch.Tensor:  # noqa: ARG002
        """(steps + 1,), from noise at 1 to an image at 0."""
        return torch.linspace(1.0, 0.0, steps + 1)

    def noise(self, size: Size, keys: Sequence[NoiseKey]) -> torch.Tensor:  # noqa: ARG002
        """(N, L, C): each row depends on its key only, not on the batch."""
        generators = [torch.Generator().manual_seed(key.generator_seed) for key in keys]
        return torch.stack([torch.randn(4, 3, generator=generator) for generator in generators])

    def velocity(
        self,
        latents: torch.Tensor,
        sigma: float,
        condition: Condition,
        guidance: float,  # noqa: ARG002
        size: Size,  # noqa: ARG002
    ) -> torch.Tensor:
        """(N, L, C): the direction from an image to noise."""
        n, tokens, _ = latents.shape
        inputs_NLF = torch.cat(
            [
                latents,
                latents.mean(dim=1, keepdim=True).expand(-1, tokens, -1),
                condition.tensors["prompt_embeds"][:, None].expand(-1, tokens, -1),
                torch.eye(tokens).expand(n, -1, -1),
                torch.full((n, tokens, 1), sigma),
            ],
            dim=-1,
        )
        velocity_NLC: torch.Tensor = self.last(self.layers(inputs_NLF))
        return velocity_NLC

    def inference_precision(self) -> AbstractContextManager[None]:
        """Large policies generate in a lower precision than they train; this policy does not."""
        return nullcontext()

    def decode(self, latents: torch.Tensor) -> list[Image.Image]:
        """Decode clean latents (N, L, C) to N images of two by two panels."""
        colours = (latents.sigmoid() * 255).to(torch.uint8).reshape(-1, 2, 2, 3).numpy()
        return [Image.fromarray(grid).resize((SIZE[1], SIZE[0]), Image.Resampling.NEAREST) for grid in colours]


# ---------------------------------------------------------------------------------------------------- algorithm
def sample(policy: TinyPolicy, records: Sequence[PromptRecord], seed: int, sampling: Sampling) -> Trajectory:
    """Sample a group of images for each prompt, (N = prompts x GROUP)."""
    rows = [row for row in range(len(records)) for _ in range(GROUP)]
    keys = [NoiseKey(records[row].idx, number % GROUP, seed) for number, row in enumerate(rows)]
    return rollout(policy, policy.encode(records), rows, keys, sampling)


def score(policy: TinyPolicy, records: Sequence[PromptRecord], trajectory: Trajectory) -> dict[str, np.ndarray]:
    """Compute each reward of the sampled images, (prompts, GROUP)."""
    images = policy.decode(trajectory.latents)
    owners = [record for record in records for _ in range(GROUP)]
    return {
        name: np.array(reward(images, owners), dtype=np.float64).reshape(len(records), GROUP)
        for name, reward in REWARDS.items()
    }


def learn(
    policy: TinyPolicy, optimizer: torch.optim.Optimizer, records: Sequence[PromptRecord], sampling: Sampling, seed: int
) -> None:
    """One epoch: sample with the current weights, compute advantages, and update the weights."""
    trajectory = sample(policy, records, seed, sampling)
    combined = aggregate(score(policy, records, trajectory), WEIGHTS, "log_tame")
    advantages_N = torch.as_tensor(advantages(combined, "group").values.reshape(-1), dtype=torch.float32)
    condition = policy.encode(records).take([row for row in range(len(records)) for _ in range(GROUP)])
    dynamics = DYNAMICS[sampling.dynamics]
    for _ in range(UPDATES):
        optimizer.zero_grad()
        for noisy in trajectory.noisy_steps:  # one for each noisy step
            step = sampling.steps[noisy.step]
            velocity_NLC = policy.velocity(noisy.before, step.sigma, condition, GUIDANCE, SIZE)
            transition = dynamics.transition(noisy.before, velocity_NLC, step)
            assert noisy.log_prob is not None  # the rollout keeps it for the loss `ppo`
            terms = LOSSES["ppo"].function(
                LossInputs(
                    log_prob=dynamics.log_prob(noisy.after, transition),  # (N,)
                    old_log_prob=noisy.log_prob,
                    advantages=advantages_N,
                    clip_range=CLIP_RANGE,
                    step=step,
                    transition=transition,
                    error_weight=dynamics.error_weight(transition.std),
                )
            )
            (terms.loss.mean() / len(trajectory.noisy_steps)).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()


def train(epochs: int = EPOCHS, log: Callable[[str], None] = print) -> list[dict[str, float]]:
    """Train a new policy. Returns the rewards on unseen noise, before the first epoch and after every tenth epoch."""
    torch.manual_seed(SEED)
    policy, records = TinyPolicy(), [prompt(colour) for colour in COLOURS]
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE)
    plain = Sampling.for_policy(policy, SIZE, STEPS, GUIDANCE)
    noisy = Sampling.for_policy(policy, SIZE, STEPS, GUIDANCE, noise_steps=NOISE_STEPS, noise_level=NOISE_LEVEL)
    evaluations: list[dict[str, float]] = []
    for epoch in range(epochs + 1):
        if epoch % 10 == 0:
            scores = score(policy, records, sample(policy, records, seed=-1, sampling=plain))
            evaluations.append({name: float(values.mean()) for name, values in scores.items()})
            log(f"epoch {epoch:3d}  " + "  ".join(f"{name} {value:.3f}" for name, value in evaluations[-1].items()))
        if epoch < epochs:
            learn(policy, optimizer, records, noisy, seed=epoch)
    return evaluations


if __name__ == "__main__":
    train()
