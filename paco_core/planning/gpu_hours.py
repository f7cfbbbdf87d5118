"""Hours of a training's or a benchmark's passes on a GPU: as measured, or estimated from its published throughput.

An estimate assumes that every GPU reaches the same share of its published throughput (dense bfloat16) as the measured
GPU. ``gpu_throughput.json`` lists the throughput and its source, ``gpu_speed.json`` the measurements.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from paco_core.config.params import PolicyRecipe
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.sizes import PUBLIC_TOKEN
from paco_core.io.files import read_json
from paco_core.planning.gpu_speed import RECORD, GpuSpeed, measured_speeds
from paco_core.planning.models import PUBLIC, ModelConfig, model_config
from paco_core.planning.passes import part_sizes, pixels_per_pass, references_per_part, side_multiple, tokens_per_pixel
from paco_core.planning.workload import Workload
from paco_core.policies.families import family_of
from paco_core.runtime.nvidia_smi import product_names

THROUGHPUT = Path(__file__).with_name("gpu_throughput.json")
MEASURED_TEXT_TOKENS = 512  # of the rows in gpu_speed.json
FILLED = 0.9  # share of a GPU's memory that is planned
#: What nvidia-smi may append to the name of a product: the form and the memory, not another product ("Ti", "Laptop").
_VARIANT = re.compile(r"([ -](SXM\d?|PCIe?|\d+GB|HBM\d\w?))*", re.IGNORECASE)


@dataclass(frozen=True)
class PublishedGpu:
    """A GPU with its published throughput.

    ``gpu`` = its name in nvidia-smi, without form and memory; ``tflops`` = of dense matrix products in bfloat16 with
    float32 accumulation, in 10^12 operations per second.
    """

    gpu: str
    tflops: float
    memory_gb: float
    source: str


@dataclass(frozen=True)
class PassWork:
    """Passes of one model over images of one size.

    ``flops`` = floating-point operations of one pass without gradient; ``sampled`` and ``trained`` = numbers of passes
    without and with gradient; ``measured`` = speeds of this model at this size, by the name of the GPU. A pass of an
    evaluation that reuses text and references counts as a part of one; in rollouts of a training, it counts as one.
    """

    flops: float
    sampled: float
    trained: float
    measured: Mapping[str, GpuSpeed]


@dataclass(frozen=True)
class GpuHours:
    """Hours of passes on one GPU, and the date of their measurement; None = estimated."""

    gpu: str
    hours: float
    measured: str | None = None

    @property
    def short_name(self) -> str:
        """The name of the GPU without its maker."""
        return self.gpu.removeprefix("NVIDIA ").removeprefix("GeForce ")

    @property
    def origin(self) -> str:
        """How the hours are known."""
        return f"measured {self.measured}" if self.measured else "estimated from the published throughput"


def hours_by_origin(hours: Iterable[GpuHours], processes: int = 1) -> dict[str, str]:
    """Text of all hours that are known in the same way, by how they are known: ``about 34 h on RTX 4090``.

    Args:
        processes: number of GPUs that share the passes.
    """
    by_origin: dict[str, list[str]] = {}
    for row in hours:
        time = row.hours / processes
        digits = f"{time:.0f}" if time >= 10 else f"{time:.2g}"
        count = f"{processes} x " if processes > 1 else ""
        by_origin.setdefault(row.origin, []).append(f"{digits} h on {count}{row.short_name}")
    return {origin: f"about {', '.join(parts)}" for origin, parts in by_origin.items()}


def describe_hours(hours: Iterable[GpuHours], processes: int = 1) -> list[str]:
    """One line per date of a measurement, and one of all estimates: ``about 34 h on RTX 4090 (estimated)``."""
    return [f"{text} ({origin})" for origin, text in hours_by_origin(hours, processes).items()]


@cache
def published_gpus() -> tuple[PublishedGpu, ...]:
    """The GPUs whose throughput is known."""
    return tuple(PublishedGpu(**row) for row in read_json(THROUGHPUT))


def published_gpu(product: str) -> PublishedGpu | None:
    """The GPU of a product name of nvidia-smi, for example "NVIDIA A100-SXM4-80GB"; None if it is not known."""
    matches = [
        gpu
        for gpu in published_gpus()
        if product.startswith(gpu.gpu) and _VARIANT.fullmatch(product.removeprefix(gpu.gpu))
    ]
    return max(matches, key=lambda gpu: len(gpu.gpu), default=None)


def present_gpus() -> list[PublishedGpu]:
    """The GPUs of this machine whose throughput is known."""
    return [gpu for name in product_names() if (gpu := published_gpu(name)) is not None]


def pass_flops(config: ModelConfig, tokens: float, reused: float = 0) -> float:
    """Floating-point operations of one pass of a multimodal diffusion transformer without gradient.

    Each block has 12 weights per token and squared width (4 in the attention's projections, 8 in the MLP), and attends
    from each token to all others.

    Args:
        tokens: number of tokens of image, references and text.
        reused: number of these tokens whose keys and values are reused.
    """
    computed = tokens - reused
    return float(config.blocks * (24 * config.width**2 * computed + 4 * config.width * computed * tokens))


def _measured_flops(speed: GpuSpeed) -> float:
    """Operations of one pass of a measured model: a square, and as many references as the model needs."""
    tokens = (1 + speed.references) * (speed.side / PUBLIC_TOKEN) ** 2 + MEASURED_TEXT_TOKENS
    return pass_flops(PUBLIC[speed.model], tokens)


@cache
def reached_shares() -> tuple[float, float]:
    """Shares of the published throughput that passes without and with gradient reach: the medians of all measurements.

    A pass with gradient counts as one without: the time of its backward pass is part of its share.
    """
    speeds = [GpuSpeed(**row) for row in read_json(RECORD)]
    measurements = [(speed, gpu) for speed in speeds if (gpu := published_gpu(speed.gpu)) is not None]
    sampled = [speed.sampled * _measured_flops(speed) / gpu.tflops / 1e12 for speed, gpu in measurements]
    trained = [speed.trained * _measured_flops(speed) / gpu.tflops / 1e12 for speed, gpu in measurements]
    return median(sampled), median(trained)


def hours_on(work: Sequence[PassWork], gpu: PublishedGpu) -> GpuHours:
    """Hours of passes on one GPU: measured if the GPU was measured with this model at each size."""
    speeds = [part.measured.get(gpu.gpu) for part in work]
    rates = [tuple(share * gpu.tflops * 1e12 / part.flops for share in reached_shares()) for part in work]
    seconds = sum(
        speed.seconds(part.sampled, part.trained) if speed else part.sampled / rate[0] + part.trained / rate[1]
        for part, speed, rate in zip(work, speeds, rates, strict=True)
    )
    dates = [speed.date for speed in speeds if speed]
    return GpuHours(gpu.gpu, seconds / 3600, max(dates) if len(dates) == len(work) else None)


def hours_by_gpu(work: Sequence[PassWork], memory_gb: float) -> list[GpuHours]:
    """Hours on the GPU of this machine; if there is none of known throughput, on each known GPU with enough memory.

    Args:
        memory_gb: what the passes need on one GPU.
    """
    if not work:
        return []
    fitting = [gpu for gpu in published_gpus() if memory_gb <= FILLED * gpu.memory_gb]
    return [hours_on(work, gpu) for gpu in present_gpus()[:1] or fitting]


def training_work(
    recipe: PolicyRecipe,
    workload: Workload,
    trained: Sequence[PromptRecord],
    evaluated: Sequence[PromptRecord],
    root: Path,
) -> list[PassWork]:
    """Passes of a training and of its evaluations; none if the model is not known.

    Args:
        trained: prompts that the recipe is trained on.
        evaluated: prompts of its evaluations.
    """
    sampled = workload.epochs * (workload.rollout_passes + workload.untrained_passes)
    parts = [_work(recipe, trained, recipe.train_size, root, sampled, workload.epochs * workload.trained_passes)]
    images = workload.evaluations * recipe.eval_prompts * len(recipe.eval_seeds)
    parts += image_work(recipe, evaluated, images, recipe.eval_steps, root)
    return [part for part in parts if part is not None]


def image_work(
    recipe: PolicyRecipe, records: Sequence[PromptRecord], images: float, steps: int, root: Path
) -> list[PassWork]:
    """Passes that generate ``images`` images at each evaluation size; none if the model is not known."""
    parts = references_per_part(recipe, records)
    passes = images * steps * family_of(recipe.family).passes_per_step(recipe.guidance)
    passes *= sum(map(len, parts)) / len(parts)
    work = [_work(recipe, records, side, root, passes, steps=steps) for side in recipe.eval_sizes]
    return [part for part in work if part is not None]


def _work(
    recipe: PolicyRecipe,
    records: Sequence[PromptRecord],
    side: int,
    root: Path,
    sampled: float,
    trained: float = 0,
    *,
    steps: int = 1,
) -> PassWork | None:
    """Work of passes at one size.

    Args:
        sampled: number of passes without gradient.
        trained: number of passes with gradient.
        steps: if a family reuses text and references, only one of this number of passes without gradient computes them.
    """
    if (config := model_config(root, recipe.model)) is None:
        return None
    patch, density = side_multiple(root, recipe), tokens_per_pixel(root, recipe)
    tokens = pixels_per_pass(recipe, records, side, patch) * density + recipe.max_sequence_length
    flops, sizes = pass_flops(config, tokens), part_sizes(recipe, records, side, patch)
    references = references_per_part(recipe, records)
    if family_of(recipe.family).reuses_conditions:
        pixels = [math.prod(size) for size, counts in zip(sizes, references, strict=True) for _ in counts]
        conditions = tokens - density * sum(pixels) / len(pixels)
        sampled *= (1 + (steps - 1) * pass_flops(config, tokens, reused=conditions) / flops) / steps
    speeds = measured_speeds(recipe, sizes, [count for parts in references for count in parts])
    return PassWork(flops, sampled, trained, {speed.gpu: speed for speed in speeds})
