"""Rollout, trained pass and decoding of a policy of random weights, on a GPU: seconds, peak memory, arithmetic used.

    python -m speed.gpu_policies flux_t2is --sides 512 1024
    python -m speed.gpu_policies flux_t2is --profile storybook --sides 64 --device cpu    # small weights, anywhere

Batches, steps, adapter and optimiser are those of the profile; the passes are the trainer's own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from paco_core.config import profiles
from paco_core.config.params import Params
from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.learner import Learner
from paco_core.grpo.rollout import Sampling, Trajectory, rollout
from paco_core.io.numbers import whole_number
from paco_core.planning.memory import training_memory
from paco_core.planning.models import ModelConfig, model_config
from paco_core.planning.random_models import add_trained_adapter, build_policy, random_prompt
from paco_core.policies.base import NoiseKey
from paco_core.policies.pipeline_policy import PipelinePolicy
from paco_core.training.precision import choose_kernels

H100_FLOPS = 989e12  # dense bfloat16, from its data sheet; an H200 computes as fast
MEASURED_STEPS = 3  # of a rollout, of which one has noise; the others of a real one take as long


def at_side(params: Params, name: str, side: int) -> Params:
    """The profile with one policy trained and evaluated at squares of ``side`` px."""
    recipe = params.policies.recipes[name].model_copy(update={"train_size": side, "eval_sizes": [side]})
    recipes = {**params.policies.recipes, name: recipe}
    return params.model_copy(update={"policies": params.policies.model_copy(update={"recipes": recipes})})


class Gauge:
    """Seconds and peak memory of pieces of work, finished on the device."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")

    def measure(self, work: Callable[[], object], repeats: int = 2) -> tuple[float, float | None]:
        """(seconds a repeat, GB at the peak or None where that is not known), after one that warms up."""
        work()
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        for _ in range(repeats):
            work()
        if self.cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - begun) / repeats
        return seconds, torch.cuda.max_memory_allocated() / 1e9 if self.cuda else None


def measure(
    policy: PipelinePolicy, learner: Learner, config: ModelConfig, params: Params, name: str, root: Path
) -> Iterator[dict[str, Any]]:
    """Rows of one picture size: rollout, trained pass, decoding, evaluation."""
    recipe = params.policies.recipes[name]
    side, gauge = recipe.train_size, Gauge(policy.device)
    size = (side, side)
    planned = training_memory(params, name, root)
    assert planned is not None
    prompt = random_prompt(policy, recipe, config, size)
    full_sampling = Sampling.for_policy(
        policy, size, recipe.sampling_steps, recipe.guidance, noise_steps=[1], noise_level=0.7
    )
    sampling = replace(full_sampling, steps=full_sampling.steps[:MEASURED_STEPS])

    def sampled(batch: int) -> Trajectory:
        keys = [NoiseKey("p", number, 0) for number in range(batch)]
        return rollout(policy, prompt, [0] * batch, keys, sampling)

    trajectory = sampled(recipe.train_batch)
    noisy, step, dynamics = trajectory.noisy_steps[0], sampling.steps[1], DYNAMICS["flow_sde"]
    condition = prompt.take([0] * recipe.train_batch)

    def trained() -> None:
        learner.updates.begin(single_pass=False)  # several passes an update: gradients are summed in float64
        v = policy.velocity(noisy.before, step.sigma, condition, recipe.guidance, size)
        learner.updates.backward(dynamics.log_prob(noisy.after, dynamics.transition(noisy.before, v, step)).mean())
        learner.updates.finish()
        learner.updates.step()
        learner.ema.update(learner.parameters)

    with torch.no_grad(), FlopCounterMode(display=False) as counter:  # of one image, with guidance
        policy.velocity(trajectory.latents[:1], step.sigma, prompt.take([0]), recipe.guidance, size)
    flops = counter.get_total_flops()
    sampling_batch, batch, few = recipe.rollout_batch, recipe.train_batch, recipe.eval_batch or recipe.rollout_batch

    seconds, peak = gauge.measure(lambda: sampled(sampling_batch))
    speed = sampling_batch * MEASURED_STEPS / seconds  # passes of a picture a second
    case = {"policy": name, "side": side}
    plan = planned.phases_gb["training"]
    figures = {"images/s": speed / recipe.sampling_steps, "MFU": speed * flops / H100_FLOPS}
    yield case | {"phase": "rollout", "batch": sampling_batch, **figures, "peak GB": peak, "plan GB": plan}

    seconds, peak = gauge.measure(trained)
    speed = batch / seconds
    # forward, its repetition under checkpointing, and gradients of the activations; frozen weights have none
    figures = {"images/s": speed, "MFU": 3 * speed * flops / H100_FLOPS}
    yield case | {"phase": "trained pass", "batch": batch, **figures, "peak GB": peak, "plan GB": plan}

    seconds, peak = gauge.measure(lambda: policy.decode(trajectory.latents, size))
    figures = {"images/s": batch / seconds}
    yield case | {"phase": "decoding", "batch": batch, **figures, "peak GB": peak, "plan GB": plan}

    _, peak = gauge.measure(lambda: policy.decode(sampled(few).latents, size), repeats=1)
    plan = planned.phases_gb[f"evaluation at {side} px"]
    yield case | {"phase": "evaluation", "batch": few, "peak GB": peak, "plan GB": plan}


def rows_of(name: str, profile: str, sides: Sequence[int], device: str, root: Path) -> list[dict[str, Any]]:
    """All rows of a policy; a size that does not fit says so and leaves the others as they are."""
    params = profiles.read(root, profile)
    recipe = params.policies.recipes[name]
    config = model_config(root, recipe.model)
    if config is None:
        raise SystemExit(f"{recipe.model}: neither a folder nor a model that paco knows")
    choose_kernels(device, recipe.dtype)
    policy = add_trained_adapter(build_policy(recipe, config, device), recipe)
    learner, rows = Learner(policy, recipe), []
    for side in sides:
        try:
            rows += measure(policy, learner, config, at_side(params, name, side), name, root)
        except torch.OutOfMemoryError:
            rows.append({"policy": name, "side": side, "phase": "out of memory"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="a policy of the profile")
    parser.add_argument("--profile", default="paper")
    parser.add_argument("--sides", type=whole_number(1), nargs="+", default=[512, 1024], help="pixels")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    print(json.dumps(rows_of(args.policy, args.profile, args.sides, args.device, Path.cwd())))


if __name__ == "__main__":
    main()
