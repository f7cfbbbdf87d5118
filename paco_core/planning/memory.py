"""Memory of a training, a benchmark and a reward server, in GB, before a run.

What an image generator needs is measured on fake tensors (:mod:`paco_core.planning.allocations`) and stored: for the
profiles of the package in ``measured_memory.json``, for other recipes in ``.paco/memory.json`` of the project.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paco_core.config.params import Params, PolicyRecipe
from paco_core.io.files import DataError, digest, read_json, write_json
from paco_core.io.messages import ignore_write_errors, print_once
from paco_core.io.project import owner_root
from paco_core.planning.models import STORED_BYTES, ModelConfig, language_layers, model_config, model_gb
from paco_core.planning.passes import (
    Pass,
    PassMemory,
    largest_image,
    references_per_part,
    side_multiple,
    tokens_per_pixel,
)
from paco_core.planning.planned_prompts import candidates, plan_prompts_or_empty
from paco_core.policies.families import family_of, needs_text_encoders
from paco_core.rewards import registry
from paco_core.sampling.generated_image import images_per_pass
from paco_core.tasks.base import PlannedPrompts, Task
from paco_core.tasks.table import recipes_of

SHIPPED = Path(__file__).with_name("measured_memory.json")
CACHE = Path(".paco") / "memory.json"
SERVER_BATCH_GB = 2.0  # of a reward server of engine transformers, for a batch of queries
QUANTIZED_BYTES = {"bitsandbytes": STORED_BYTES["nf4"], "fp8": STORED_BYTES["fp8"]}  # a weight, by vLLM's names


@dataclass(frozen=True)
class TrainingMemory:
    """GB of one training process.

    ``weights_gb`` = transformer and VAE, with text encoders if stories need them; ``adapter_gb`` = the adapter with its
    average, gradient, optimizer state and copies; ``latents_gb`` = latents of an epoch; ``passes_gb`` = largest pass of
    a phase; ``encoding_gb`` = the pipeline without its transformer, which is loaded after the prompts are encoded;
    ``reward_models_gb`` = reward models in the training's process.
    """

    weights_gb: float
    adapter_gb: float
    latents_gb: float
    passes_gb: Mapping[str, float]
    encoding_gb: float
    reward_models_gb: Mapping[str, float]

    @property
    def phases_gb(self) -> dict[str, float]:
        """GB of each phase."""
        weights = self.weights_gb + self.adapter_gb
        phases = {name: weights + gb + self.latents_gb * (name == "training") for name, gb in self.passes_gb.items()}
        return {"encoding": self.encoding_gb, **phases}

    @property
    def peak_gb(self) -> float:
        """GB of the largest phase."""
        return max(self.phases_gb.values())

    @property
    def together_gb(self) -> float:
        """GB of the largest phase with the reward models of the process."""
        return self.peak_gb + sum(self.reward_models_gb.values())


def training_passes(recipe: PolicyRecipe, planned: PlannedPrompts, root: Path) -> dict[str, list[Pass]]:
    """The largest passes of each phase of a training, by the name of the phase."""
    trained, evaluated = candidates(planned, recipe, root)
    multiple, side = side_multiple(root, recipe), max(recipe.eval_sizes)
    size, references = largest_image(recipe, trained, recipe.train_size, multiple)
    batch = recipe.eval_batch or recipe.rollout_batch
    return {
        "training": [
            Pass("train", size, references, recipe.train_batch),
            Pass("sample", size, references, recipe.rollout_batch),
        ],
        f"evaluation at {side} px": [Pass("sample", *largest_image(recipe, evaluated, side, multiple), batch)],
    }


def training_memory(
    params: Params, policy: str, root: Path, planned: PlannedPrompts | None = None
) -> TrainingMemory | None:
    """Memory of the phases of a training; None where the model is neither a folder nor known.

    Args:
        policy: name of the recipe.
        planned: the prompts of the graph (:func:`plan_prompts_or_empty`), if the caller has them.
    """
    recipe = params.policies.recipes[policy]
    if (config := model_config(root, recipe.model)) is None:
        return None
    planned = planned or plan_prompts_or_empty(params, root)
    phases = training_passes(recipe, planned, root)
    measured = measured_memory(root, recipe, config, [run for passes in phases.values() for run in passes])
    steps = len(recipe.train_steps or recipe.noise_steps) or recipe.sampling_steps
    latents = 1 if recipe.forward else steps * (3 if recipe.loss == "grpo_guard" else 2)
    parts = references_per_part(recipe, candidates(planned, recipe, root)[0])
    images = recipe.samples_per_epoch * sum(map(len, parts)) / len(parts)
    tokens = math.prod(phases["training"][0].size) * tokens_per_pixel(root, recipe)
    encoding = max(0.0, model_gb(root, recipe.model) - measured.transformer_gb)
    return TrainingMemory(
        weights_gb=measured.weights_gb + needs_text_encoders(recipe) * max(0.0, encoding - measured.vae_gb),
        adapter_gb=measured.adapter_weights * _bytes_per_adapter_weight(recipe) / 1e9,
        latents_gb=images * latents * tokens * config.token_channels * 4 / 1e9,  # float32
        passes_gb={name: max(measured.passes[str(run)] for run in passes) for name, passes in phases.items()},
        encoding_gb=encoding,
        reward_models_gb={
            name: model_gb(root, term.model)
            / (2 if registry.reward_kind(name, term).startswith("clip") else 1)  # in float16
            for name, term in recipe.rewards.terms.items()
            if term.device.startswith("cuda") and term.model
        },
    )


def _bytes_per_adapter_weight(recipe: PolicyRecipe) -> int:
    """Weight, average, gradient, its sum in float64, two moments, and a copy: the old policy or the reference."""
    moments = 2 if recipe.optimizer == "adamw_8bit" else 8
    return 4 + 4 + 4 + 8 + moments + 4 * (recipe.loss in ("nft", "dpo"))


def benchmark_passes(
    recipe: PolicyRecipe, task: Task, params: Params, planned: PlannedPrompts, root: Path
) -> list[Pass]:
    """The largest passes of a benchmark that generates images by a recipe."""
    side, words = max(recipe.eval_sizes), recipe.max_sequence_length
    images = [largest_image(recipe, candidates(planned, recipe, root)[1], side, side_multiple(root, recipe))]
    if task.has_separate_panels(params):
        images.append(((side, side), 0))
    return [
        Pass("sample", size, references, images_per_pass(size, references=references, words=words))
        for size, references in images
    ]


def benchmark_gb(params: Params, task: Task, planned: PlannedPrompts, root: Path) -> float:
    """GB of a benchmark that generates images by the recipes of a task: it keeps the text encoders."""
    needs = [0.0]
    for recipe in recipes_of(task, params.policies).values():
        needs.append(model_gb(root, recipe.model))
        if (config := model_config(root, recipe.model)) is not None:
            passes = benchmark_passes(recipe, task, params, planned, root)
            measured = measured_memory(root, recipe, config, passes)
            needs[-1] += 4 * measured.adapter_weights / 1e9 - measured.spared_gb
            needs[-1] += max(measured.passes[str(run)] for run in passes)
    return max(needs)


def server_gb(params: Params, root: Path, memory_gb: float | None = None, judge: str | None = None) -> float:
    """GB of a reward server on each of its GPUs.

    Args:
        judge: folder of the reward model; None = the project's own.
        memory_gb: of the GPU: vLLM takes ``execution.serving.gpu_share`` of it, whatever the model needs;
            None = what it needs.
    """
    model = params.reward.model if judge is None else judge
    weights = model_gb(root, model)
    if params.serving.quantization:
        weights -= language_layers(root, model) * (2 - QUANTIZED_BYTES[params.serving.quantization]) / 1e9
    needed = weights / params.serving.tensor_parallel + SERVER_BATCH_GB
    if params.serving.engine != "vllm" or memory_gb is None:
        return needed
    return max(needed, params.serving.gpu_share * memory_gb)


def measured_memory(root: Path, recipe: PolicyRecipe, config: ModelConfig, passes: Sequence[Pass]) -> PassMemory:
    """Memory of a recipe's image generator and of passes of it: as stored, or measured now and stored.

    Raises:
        DataError: when diffusers cannot build the model from its configuration.
    """
    key, path = memory_key(recipe, config), owner_root(root) / CACHE
    stored = _merged(_shipped().get(key), _read(path).get(key))
    missing = [run for run in dict.fromkeys(passes) if stored is None or str(run) not in stored.passes]
    if stored is not None and not missing:
        return stored
    from paco_core.planning.allocations import measure  # noqa: PLC0415 - with torch

    print_once(f"{recipe.model}: its memory is measured once, which takes up to a minute")
    measured = measure(recipe, config, missing)
    with ignore_write_errors("measurements of memory"):
        write_measured(path, {**_read(path), key: _merged(_read(path).get(key), measured) or measured})
    return _merged(stored, measured) or measured


def memory_key(recipe: PolicyRecipe, config: ModelConfig) -> str:
    """Digest of all that :func:`paco_core.planning.allocations.measure` depends on, apart from the passes."""
    parts = [
        {name: value for name, value in part.items() if name == "_class_name" or not name.startswith("_")}
        for part in (config.transformer, config.vae)
    ]
    family = family_of(recipe.family)
    return digest(
        [
            *parts,
            config.text_patch,
            [recipe.family, recipe.task, recipe.dtype, recipe.device.startswith("cuda"), recipe.base],
            [recipe.lora.rank, recipe.lora.targets or family.lora_targets, recipe.gradient_checkpointing],
            [family.passes_per_step(recipe.guidance), recipe.max_sequence_length, recipe.reference_size],
            [version(name).partition("+")[0] for name in ("torch", "diffusers", "peft")],
        ],
        32,
    )


def _merged(stored: PassMemory | None, measured: PassMemory | None) -> PassMemory | None:
    if stored is None or measured is None:
        return stored or measured
    return replace(stored, passes={**stored.passes, **measured.passes})


@cache
def _shipped() -> dict[str, PassMemory]:
    return _read(SHIPPED)


def _read(path: Path) -> dict[str, PassMemory]:
    """Measurements by key; none where the file is missing or was written by another version."""
    try:
        tree: dict[str, Any] = read_json(path) if path.is_file() else {}
        return {key: PassMemory(**{**row, "passes": dict(row["passes"])}) for key, row in tree.items()}
    except (AttributeError, DataError, KeyError, TypeError):
        return {}


def write_measured(path: Path, rows: Mapping[str, PassMemory]) -> None:
    """Write measurements by key."""
    write_json(path, {key: asdict(row) for key, row in sorted(rows.items())})
