"""What a training holds on its GPU in each phase, and what stands beside it there: estimates, printed before a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paco_core.config.params import Params
from paco_core.planning.footprint import ACTIVATIONS_A_BLOCK, architecture, footprint
from paco_core.planning.weights import model_gb
from paco_core.policies.families import family_of
from paco_core.rewards import registry

#: Bytes that decoding one pixel takes at its peak in bfloat16, of the public VAEs on fake tensors: 25.8 and 55 GB for
#: 16 pictures of 1024 x 1024.
DECODING = {"FluxTransformer2DModel": 1540, "QwenImageTransformer2DModel": 3280}
ANSWERING_GB = 2.0  # of a reward's server beside its weights, where it is ours: one batch of questions


@dataclass(frozen=True)
class DeviceMemory:
    """GB by phase of the training, and GB of what else is on a GPU all the time."""

    phases: dict[str, float]
    beside: dict[str, float]

    @property
    def peak_gb(self) -> float:
        """Of the policy alone."""
        return max(self.phases.values())

    @property
    def together_gb(self) -> float:
        """With everything on one GPU."""
        return self.peak_gb + sum(self.beside.values())


def device_memory(params: Params, policy: str, root: Path) -> DeviceMemory | None:
    """Estimate the phases of a training and what stands beside it; None where the model is not known."""
    recipe = params.policies.recipes[policy]
    grpo = params.policies.of(recipe)
    if (found := architecture(root, recipe.model)) is None:
        return None
    need = footprint(found, grpo, recipe, (0, 0))
    size = 2 if grpo.dtype == "bfloat16" else 4
    side, batch = max(recipe.eval_sizes), grpo.rollout_batch
    tokens = sum(found.tokens(recipe, side)) * family_of(recipe.family).passes_a_step(recipe.guidance)
    activations = batch * tokens * found.hidden * size * ACTIVATIONS_A_BLOCK / 2 / 1e9
    decoded = batch * side**2 * DECODING[found.kind] * size / 2 / 1e9
    held = need.weights_gb + need.adapter_gb
    phases = {
        "encoding": max(model_gb(root, recipe.model), need.weights_gb),
        "training": need.memory_gb,
        f"evaluation at {side} px": held + max(activations, decoded),
    }
    beside = {
        name: model_gb(root, term.model)
        for name, term in recipe.rewards.terms.items()
        if term.device.startswith("cuda") and term.model
    }
    if registry.judges_of(*recipe.reward_sets.values()) and params.serving.device.startswith("cuda"):
        weights = params.reward.weights if params.reward.source == "merged" else params.reward.base
        beside["the reward's server"] = model_gb(root, weights) + ANSWERING_GB
    return DeviceMemory(phases, beside)
