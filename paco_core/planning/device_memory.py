"""What a training holds on its GPU in each phase, and what stands beside it there: estimates, printed before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paco_core.config.params import Params, PolicyRecipe
from paco_core.data.records.records import PromptRecord
from paco_core.painting.painted import pictures_a_pass
from paco_core.planning.footprint import KEPT_BYTES, Architecture, architecture, footprint
from paco_core.planning.foreseen import paintable, usable
from paco_core.planning.squares import beside, most_beside, resized, squared
from paco_core.planning.weights import language_layers, model_gb
from paco_core.rewards import registry
from paco_core.tasks.base import Foreseen, Task
from paco_core.tasks.table import recipes_of

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


def painting_gb(params: Params, task: Task, foreseen: Foreseen, root: Path) -> float:
    """What a benchmark holds that paints by the recipes of a task at their largest size: it keeps the text encoders."""
    recipes = recipes_of(task, params.policies).values()
    alone = task.panels_alone(params)
    return max(
        (_painting_gb(recipe, paintable(foreseen, recipe, root)[1], alone, root) for recipe in recipes), default=0.0
    )


def _painting_gb(recipe: PolicyRecipe, records: Sequence[PromptRecord], panels_alone: bool, root: Path) -> float:
    size, held = _bytes(recipe), model_gb(root, recipe.model)
    if (found := architecture(root, recipe.model)) is None:
        return held
    if recipe.base:
        held -= found.parameters * (size - KEPT_BYTES[recipe.base]) / 1e9
    whole, parts = max(recipe.eval_sizes), beside(recipe, records)
    passes = {(side, max(own)) for side, own in zip(squared(recipe, records, whole, found.patch), parts, strict=True)}
    if panels_alone:
        passes.add((whole, 0))
    return held + max(_pass_gb(found, recipe, side, references, size) for side, references in passes)


def _pass_gb(found: Architecture, recipe: PolicyRecipe, side: int, references: int, size: int) -> float:
    """What as many pictures hold as a benchmark paints in one pass."""
    batch = pictures_a_pass((side, side), references=references, words=recipe.max_sequence_length)
    return max(found.sampling_gb(recipe, side, batch, size, references), found.decoding_gb(side, batch, size))


def _bytes(recipe: PolicyRecipe) -> int:
    """Of one value."""
    return 2 if recipe.dtype == "bfloat16" else 4


def device_memory(params: Params, policy: str, root: Path, foreseen: Foreseen | None = None) -> DeviceMemory | None:
    """Estimate the phases of a training and what stands beside it; None where the model is not known.

    Args:
        foreseen: the prompts of the graph (:func:`usable`), if the caller has them.
    """
    recipe = params.policies.recipes[policy]
    if (found := architecture(root, recipe.model)) is None:
        return None
    trained, evaluated = paintable(foreseen or usable(params, root), recipe, root)
    largest = resized(recipe, trained, evaluated, found.patch)
    need = footprint(found, largest, (0, 0), beside(recipe, trained))
    size, references = _bytes(recipe), most_beside(recipe, evaluated)
    side, batch = max(largest.eval_sizes), recipe.eval_batch or recipe.rollout_batch
    held = need.weights_gb + need.adapter_gb + need.rounded_gb
    painted = max(found.sampling_gb(recipe, side, batch, size, references), found.decoding_gb(side, batch, size))
    phases = {
        "encoding": max(
            0.0, model_gb(root, recipe.model) - found.parameters * size / 1e9
        ),  # the transformer comes after
        "training": need.memory_gb,
        f"evaluation at {max(recipe.eval_sizes)} px": held + painted,
    }
    around = {
        name: model_gb(root, term.model) / (2 if registry.kind(name, term).startswith("clip") else 1)  # fp16 on a GPU
        for name, term in recipe.rewards.terms.items()
        if term.device.startswith("cuda") and term.model
    }
    return DeviceMemory(phases, around)
