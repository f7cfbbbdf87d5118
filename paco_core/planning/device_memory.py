"""What a training holds on its GPU in each phase, and what stands beside it there: estimates, printed before a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paco_core.config.params import Params, PolicyRecipe
from paco_core.painting.painted import pictures_a_pass
from paco_core.planning.footprint import KEPT_BYTES, architecture, footprint
from paco_core.planning.foreseen import trained_on
from paco_core.planning.squares import parts_of, squared
from paco_core.planning.weights import language_layers, model_gb
from paco_core.policies.families import edits, predecessors_of
from paco_core.rewards import registry

ANSWERING_GB = 2.0  # of a reward's server beside its weights, where it is ours: one batch of questions

QUANTISED_BYTES = {"bitsandbytes": KEPT_BYTES["nf4"], "fp8": KEPT_BYTES["fp8"]}  # a weight, by vLLM's names


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
        """With the rewards of the training's own process."""
        return self.peak_gb + sum(self.beside.values())


def server_gb(params: Params, root: Path, memory_gb: float | None = None, judge: str | None = None) -> float:
    """What a reward server holds on each of its GPUs.

    Args:
        judge: folder of the judge; None = the project's reward.
        memory_gb: of the GPU: vLLM takes ``execution.serving.gpu_share`` of it, whatever the model needs;
            None = what it needs.
    """
    own = params.reward.weights if params.reward.source == "merged" else params.reward.base
    weights = own if judge is None else judge
    held = model_gb(root, weights)
    if params.serving.quantization:
        held -= language_layers(root, weights) * (2 - QUANTISED_BYTES[params.serving.quantization]) / 1e9
    needed = held / params.serving.tensor_parallel + ANSWERING_GB
    if params.serving.engine != "vllm" or memory_gb is None:
        return needed
    return max(needed, params.serving.gpu_share * memory_gb)


def painting_gb(recipes: Iterable[PolicyRecipe], root: Path) -> float:
    """What a benchmark holds that paints by these recipes at their largest size: it keeps the text encoders."""
    most = 0.0
    for recipe in recipes:
        size = _bytes(recipe)
        held, side = model_gb(root, recipe.model), max(recipe.eval_sizes)
        if (found := architecture(root, recipe.model)) is not None:
            if recipe.base:
                held -= found.parameters * (size - KEPT_BYTES[recipe.base]) / 1e9
            before = predecessors_of(recipe)
            side //= 2 if before else 1  # a panel
            references = int(edits(recipe)) + before
            batch = pictures_a_pass((side, side), references=references, words=recipe.max_sequence_length)
            held += max(found.sampling_gb(recipe, side, batch, size), found.decoding_gb(side, batch, size))
        most = max(most, held)
    return most


def _bytes(recipe: PolicyRecipe) -> int:
    """Of one value."""
    return 2 if recipe.dtype == "bfloat16" else 4


def device_memory(params: Params, policy: str, root: Path) -> DeviceMemory | None:
    """Estimate the phases of a training and what stands beside it; None where the model is not known."""
    recipe = params.policies.recipes[policy]
    if (found := architecture(root, recipe.model)) is None:
        return None
    records = trained_on(params, params.policies.recipe(policy), root)
    largest = squared(recipe, records, found.patch)
    need = footprint(found, largest, (0, 0), parts_of(recipe, records))
    size = _bytes(recipe)
    side, batch = max(largest.eval_sizes), recipe.eval_batch or recipe.rollout_batch
    held = need.weights_gb + need.adapter_gb + need.rounded_gb
    painted = max(found.sampling_gb(recipe, side, batch, size), found.decoding_gb(side, batch, size))
    phases = {
        "encoding": max(
            0.0, model_gb(root, recipe.model) - found.parameters * size / 1e9
        ),  # the transformer comes after
        "training": need.memory_gb,
        f"evaluation at {max(recipe.eval_sizes)} px": held + painted,
    }
    beside = {
        name: model_gb(root, term.model) / (2 if registry.kind(name, term).startswith("clip") else 1)  # fp16 on a GPU
        for name, term in recipe.rewards.terms.items()
        if term.device.startswith("cuda") and term.model
    }
    return DeviceMemory(phases, beside)
