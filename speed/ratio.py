"""What share of samples is outside the clip range before the first update, by family, size and number format.

    OMP_NUM_THREADS=1 python -m speed.ratio

The paper's settings (rollout batches of 16, training batches of 4, its guidance, noise and clip range) with the
embedded world's small models and the public models' schedule; prompts of different lengths, so that batches are
padded differently. Beside rounding, two faults: 20% noise on the trained velocity, and another sample's.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image

from paco_core.config import profiles
from paco_core.config.params import PolicyRecipe, parse
from paco_core.grpo.learner import Learner
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.grpo.sampling import Bucket, Experience
from paco_core.io.numbers import whole
from paco_core.policies import base
from paco_core.policies.base import NoiseKey, Policy

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"flux_t2is": "flux", "kontext_edit": "flux_kontext", "qwen_edit": "qwen_image_edit"}
PROMPTS = ("a red cat", "a frog with a hat and a kite on the beach", "two", "a boat in the rain, drawn in pencil")
SCHEDULE = {"use_dynamic_shifting": True, "base_shift": 0.5, "base_image_seq_len": 256}
SHIFT = {"flux": (1.15, 4096), "flux_kontext": (1.15, 4096), "qwen_image_edit": (0.9, 8192)}


def paper(name: str, dtype: str, **changes: Any) -> PolicyRecipe:
    """The profile's recipe for one update on a processor that nothing stops."""
    recipe = parse(profiles.resolve(ROOT, "paper")).policies.recipes[name]
    given = {"dtype": dtype, "device": "cpu", "updates_per_epoch": 1, "max_ratio_gap": 1e9, **changes}
    return recipe.model_copy(update=given)


def experience(policy: Policy, recipe: PolicyRecipe, side: int) -> Experience:
    """A rollout of two batches, up to the first noisy step."""
    size, count = (side, side), recipe.rollout_batch * 2
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8))
    given = ([picture] * len(PROMPTS), [[size]] * len(PROMPTS)) if policy.edits else (None, ())
    encoded = policy.encode(PROMPTS, recipe.max_sequence_length, *given, guidance=recipe.guidance)
    noisy, level = recipe.noise_steps[0], recipe.noise_level
    whole = Sampling.for_policy(
        policy, size, recipe.sampling_steps, recipe.guidance, noise_steps=[noisy], noise_level=level,
        dynamics=recipe.dynamics,
    )  # fmt: skip
    sampling = replace(whole, steps=whole.steps[: noisy + 1])
    each = recipe.train_batch  # so that a rollout batch has several prompts, and a trained one has one
    rows = [place // each % len(PROMPTS) for place in range(count)]
    keys = [NoiseKey(f"p{row}", place, 0) for place, row in enumerate(rows)]
    parts = [
        rollout(policy, encoded, rows[start:end], keys[start:end], sampling).kept[0]
        for start in range(0, count, recipe.rollout_batch)
        for end in (start + recipe.rollout_batch,)
    ]
    kept = replace(
        parts[0],
        before=torch.cat([part.before for part in parts]),
        after=torch.cat([part.after for part in parts]),
        log_prob=torch.cat([part.log_prob for part in parts if part.log_prob is not None]),
    )
    return Experience(encoded, rows, keys, np.ones(count), [Bucket(sampling, np.arange(count), {noisy: kept})])


def learnt(policy: Any, recipe: PolicyRecipe, found: Experience, fault: str = "") -> dict[str, float]:
    """The metrics of an update on ``found``; a fault spoils the velocity of trained passes."""
    real, generator = policy.velocity, torch.Generator().manual_seed(0)

    def velocity(*args: Any) -> torch.Tensor:
        v: torch.Tensor = real(*args)
        if fault == "noise":
            return v + 0.2 * v.detach().std() * torch.randn(v.shape, generator=generator)
        return v.roll(1, 0) if fault == "swapped" else v

    policy.velocity = velocity
    try:
        return Learner(policy, recipe).learn(found)
    finally:
        policy.velocity = real


def main() -> None:
    """``python -m speed.ratio [--sides 64 512] [--recipes flux_t2is qwen_edit]``."""
    parser = argparse.ArgumentParser(prog="python -m speed.ratio", description=__doc__)
    parser.add_argument("--sides", type=whole(1), nargs="+", default=[64, 512], help="pixels (default: 64 512)")
    parser.add_argument("--recipes", nargs="+", default=["flux_t2is", "qwen_edit"], choices=MODELS)
    given = parser.parse_args()
    print("recipe, dtype, tokens, passes: largest |ratio - 1|, share outside the clip range")
    for name in given.recipes:
        for dtype in ("float32", "bfloat16"):
            recipe = paper(name, dtype)
            policy: Any = base.load(recipe.family, str(ROOT / "data/zoo" / MODELS[name]), "cpu", dtype)
            shift, longest = SHIFT[recipe.family]
            policy.pipeline.scheduler = FlowMatchEulerDiscreteScheduler(
                **SCHEDULE, max_shift=shift, max_image_seq_len=longest
            )
            policy.add_adapter(recipe.lora, 0)
            for side in given.sides:
                found = experience(policy, recipe, side)
                again = recipe.model_copy(update={"old_log_prob": "recomputed"})
                cases = {"rollout": (recipe, ""), "recomputed": (again, ""), "20% noise": (recipe, "noise")}
                for case, (settings, fault) in (cases | {"swapped": (recipe, "swapped")}).items():
                    metrics = learnt(policy, settings.model_copy(update={"learning_rate": 1e-12}), found, fault)
                    tokens = found.buckets[0].kept[recipe.noise_steps[0]].before.shape[1]
                    told = f"{metrics['ratio_gap']:.1e}, {metrics['first_clip_fraction']:.0%}"
                    print(f"{name}, {dtype}, {tokens}, {case}: {told}", flush=True)


if __name__ == "__main__":
    main()
