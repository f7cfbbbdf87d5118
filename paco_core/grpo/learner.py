"""From advantages to weights: trained passes at the noise steps, optimiser, EMA, health of the update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paco_core.grpo.checkpoint import pack, unpack
from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.ema import Ema
from paco_core.grpo.losses import LOSSES, LossInputs
from paco_core.grpo.rollout import Kept, Sampling
from paco_core.params import PoliciesParams
from paco_core.policies.base import Condition, Policy

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Experience:
    """One epoch's samples, group after group: prompt row, kept steps and advantage of each (N,)."""

    condition: Condition
    rows: Sequence[int]
    kept: Sequence[Kept]  # one a noise step, N samples each
    advantages: np.ndarray
    sampling: Sampling


@dataclass(frozen=True)
class UpdateHealth:
    """What an epoch's updates looked like.

    ``ratio_gap``: largest |log p - log p_old| before the first update, 0 but for rounding. ``ratio_mean``,
    ``ratio_std``, ``clip_fraction``: over all trained samples. ``grad_norm``: mean over updates, before clipping.
    """

    ratio_gap: float
    ratio_mean: float
    ratio_std: float
    clip_fraction: float
    grad_norm: float
    loss: float
    trained: int  # samples passed forward and backward; those of advantage 0 have no gradient and are not


class Learner:
    """Owns the optimiser and the averaged weights of a policy's adapter."""

    def __init__(self, policy: Policy, params: PoliciesParams) -> None:
        import torch

        self.policy, self.params = policy, params
        self.loss = LOSSES[params.loss]
        self.parameters = policy.trainable()
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()), lr=params.learning_rate, weight_decay=params.weight_decay
        )
        self.ema = Ema(self.parameters, params.ema_decay, params.ema_every)

    def learn(self, experience: Experience) -> UpdateHealth:
        """Run the epoch's updates; each takes its own share of the groups, once.

        Raises:
            RuntimeError: when a gradient is not finite; no weight has been changed by it.
        """
        updates = self.params.updates_per_epoch
        each = len(experience.rows) // updates
        ratios: list[torch.Tensor] = []
        norms, losses, gaps, trained = [], [], [0.0], 0
        for number in range(updates):
            samples = np.arange(number * each, (number + 1) * each)
            active = samples[experience.advantages[samples] != 0]
            if not len(active):
                continue
            self.optimizer.zero_grad(set_to_none=True)
            for kept in experience.kept:
                for start in range(0, len(active), self.params.train_batch):
                    part = active[start : start + self.params.train_batch].tolist()
                    ratio, loss, gap = self._backward(experience, kept.take(part), part, each)
                    ratios.append(ratio)
                    losses.append(loss)
                    if number == 0:
                        gaps.append(gap)
            norms.append(self._step())
            trained += len(active)
        return _health(ratios, norms, losses, max(gaps), trained, self.params.clip_range)

    def _backward(
        self, experience: Experience, kept: Kept, rows: list[int], update_size: int
    ) -> tuple[torch.Tensor, float, float]:
        """Gradients of one micro-batch; the loss is a mean over the whole update, steps included."""
        import torch

        sampling = experience.sampling
        dynamics, step = DYNAMICS[sampling.dynamics], sampling.steps[kept.step]
        condition = experience.condition.take([experience.rows[row] for row in rows])
        v = self.policy.velocity(kept.before, step.sigma, condition, sampling.guidance, sampling.size)
        transition = dynamics.transition(kept.before, v, step)
        log_prob = dynamics.log_prob(kept.after, transition)
        limit = self.params.max_advantage
        advantages = torch.as_tensor(experience.advantages[rows], dtype=torch.float32, device=log_prob.device)
        terms = self.loss.function(
            LossInputs(
                log_prob=log_prob,
                old_log_prob=kept.log_prob,
                advantages=advantages.clamp(-limit, limit),
                clip_range=self.params.clip_range,
                step=step,
                transition=transition,
                old_mean=kept.mean,
            )
        )
        loss = terms.loss.sum() / (update_size * len(experience.kept))
        loss.backward()
        gap = (log_prob.detach() - kept.log_prob).abs().max()
        return terms.ratio.detach(), float(loss.detach()), float(gap)

    def _step(self) -> float:
        import torch

        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.params.max_grad_norm))
        if not np.isfinite(norm):
            raise RuntimeError(
                f"the gradient's norm is {norm}; the last checkpoint is good. Lower policies.learning_rate, "
                "or check that the rewards are finite"
            )
        self.optimizer.step()
        self.ema.update(self.parameters)
        return norm

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights, averaged weights, optimiser moments and the random state, for a checkpoint."""
        import torch

        state = self.optimizer.state
        moments = {f"{name}|{key}": value for name, p in self.parameters.items() for key, value in state[p].items()}
        rng = {"torch": torch.get_rng_state()}
        return pack({"weights": self.parameters, "ema": self.ema.shadow, "optimizer": moments, "rng": rng})

    def restore(self, tensors: dict[str, torch.Tensor], optimizer_steps: int) -> None:
        """Put back what :meth:`tensors` gave, bit for bit."""
        import torch

        device = next(iter(self.parameters.values())).device
        for name, value in unpack(tensors, "weights").items():
            self.parameters[name].data.copy_(value)
        for name, value in unpack(tensors, "ema").items():
            self.ema.shadow[name].copy_(value)
        self.ema.steps = optimizer_steps
        for key, value in unpack(tensors, "optimizer").items():
            name, _, moment = key.rpartition("|")
            place = "cpu" if moment == "step" else device
            self.optimizer.state[self.parameters[name]][moment] = value.to(place)
        torch.set_rng_state(tensors["rng/torch"])


def _health(
    ratios: list[torch.Tensor], norms: list[float], losses: list[float], gap: float, trained: int, clip: float
) -> UpdateHealth:
    import torch

    if not ratios:
        return UpdateHealth(gap, 1.0, 0.0, 0.0, 0.0, 0.0, 0)
    ratio = torch.cat(ratios).double()
    return UpdateHealth(
        ratio_gap=gap,
        ratio_mean=float(ratio.mean()),
        ratio_std=float(ratio.std(unbiased=False)),
        clip_fraction=float(((ratio - 1.0).abs() > clip).double().mean()),
        grad_norm=float(np.mean(norms)),
        loss=float(np.sum(losses)) / max(1, len(norms)),
        trained=trained,
    )
