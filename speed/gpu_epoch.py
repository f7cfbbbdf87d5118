"""One epoch of a policy by `Trainer.run`, with random weights of full size on a GPU: seconds of each part, peak memory.

    python -m speed.gpu_epoch kontext_edit                        # profiles/paper.yaml
    python -m speed.gpu_epoch flux_t2is --profile klein_48gb      # FLUX.2 [klein] 4B
    python -m speed.gpu_epoch flux_t2is --compile                 # with compiled transformer blocks
    python -m speed.gpu_epoch flux_t2is --profile storybook --device cpu    # small weights, anywhere

The epoch samples sixteen images, rewards dark ones, and trains on them. It evaluates two images before and after. With
compiled blocks the second epoch is measured, because the first one compiles.
Batches, steps, size, adapter and optimizer are those of the profile. Embeddings are random, and as many as for
the longest prompt.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from paco_core.config import profiles
from paco_core.config.params import PolicyRecipe
from paco_core.grpo.evaluation import Evaluator
from paco_core.grpo.recipe import assemble
from paco_core.grpo.trainer import Reports, RunContext
from paco_core.planning.memory import training_memory
from paco_core.planning.models import ModelConfig, model_config
from paco_core.planning.random_models import build_policy, random_prompt
from paco_core.policies.encoded import Encoded
from paco_core.policies.pipeline_policy import PipelinePolicy
from speed.gpu_policies import at_side
from speed.gpu_trainer import REWARDS, Darkness, split

#: What makes an epoch short. The ratio gap is measured here and stops nothing.
SHORT: dict[str, Any] = {
    "epochs": 1, "prompts_per_epoch": 2, "group_size": 8, "updates_per_epoch": 2, "max_ratio_gap": 1.0,
    "eval_every": 1, "eval_prompts": 1, "eval_seeds": [0, 1], "rewards": REWARDS, "test_rewards": None,
    "hack_meter": None, "early_stop": None,
}  # fmt: skip


class Clock:
    """Seconds of calls, finished on the device; what is called within another timed call is part of that one."""

    def __init__(self, device: str) -> None:
        self.cuda, self.inside = device.startswith("cuda"), False
        self.seconds: dict[str, list[float]] = {}

    def _now(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    @contextmanager
    def timed(self, owner: type, name: str) -> Iterator[None]:
        """Note the seconds of each call of a method, for the length of a block."""
        method: Callable[..., Any] = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return method(*args, **kwargs)
            self.inside, begun = True, self._now()
            try:
                return method(*args, **kwargs)
            finally:
                self.inside = False
                self.seconds.setdefault(name, []).append(self._now() - begun)

        with patch.object(owner, name, call):
            yield


def free_gb(device: str) -> float | None:
    """GB that nothing holds on the GPU; None for a processor."""
    return torch.cuda.mem_get_info(device)[0] / 1e9 if device.startswith("cuda") else None


def random_embeddings(
    policy: PipelinePolicy, recipe: PolicyRecipe, config: ModelConfig, prompts: Sequence[str], *_: Any, **__: Any
) -> Encoded:
    """Random values instead of :meth:`Policy.encode`, to avoid loading text encoders of full size."""
    rows = [random_prompt(policy, recipe, config, (recipe.train_size,) * 2).rows[0] for _ in prompts]
    return Encoded(rows, policy.device)


def train(recipe: PolicyRecipe, config: ModelConfig, device: str) -> tuple[dict[str, float], Clock]:
    """Train, and return the metrics and seconds of the last epoch, and the seconds of the timed calls."""
    policy, clock, last = build_policy(recipe, config, device), Clock(device), dict[str, float]()
    reports = Reports(metrics=lambda values, _epoch: last.update(values))
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(policy, "encode", partial(random_embeddings, policy, recipe, config)),
        clock.timed(type(policy), "decode"),
        clock.timed(Evaluator, "evaluate"),
    ):
        prompts = split(edits=policy.edits)
        reduced = replace(prompts, unseen=prompts.unseen[: recipe.eval_prompts])
        trainer = assemble(recipe, policy, reduced, RunContext(rewards={"darkness": Darkness()}, reports=reports))
        trainer.run(Path(folder) / "out", Path(folder) / "checkpoints")
    return last, clock


def measure(name: str, profile: str, device: str, root: Path, compiled: bool = False) -> dict[str, Any]:
    """The row of one policy; one that does not fit, or fails, is a row with the reason."""
    params = profiles.read(root, profile)
    base_recipe = params.policies.recipes[name]
    if (config := model_config(root, base_recipe.model)) is None:
        raise SystemExit(f"{base_recipe.model}: neither a folder nor a model that paco knows")
    side = base_recipe.train_size
    planned = training_memory(at_side(params, name, side), name, root)
    assert planned is not None
    phases = planned.phases_gb  # minus that of encoding: no text encoder is loaded
    plan = max(phases["training"], phases[f"evaluation at {side} px"])
    recipe = PolicyRecipe.model_validate(
        {
            **base_recipe.model_dump(),
            **SHORT,
            "device": device,
            "eval_sizes": [side],
            "compile": compiled,
            "epochs": 1 + compiled,
        }
    )
    row: dict[str, Any] = {
        "model": base_recipe.model,
        "side": side,
        "compiled": "yes" if compiled else "no",
        "plan GB": plan,
    }
    free = free_gb(device)
    if free is not None and free < plan:
        return row | {"error": f"skipped: {plan:.1f} GB by the plan, {free:.1f} GB are free on this GPU"}
    begun = time.monotonic()
    try:
        metrics, clock = train(recipe, config, device)
    except Exception as error:  # a failed case is a row of the table  # noqa: BLE001
        return row | {"error": f"{type(error).__name__}: {str(error)[:120]}"}
    decodes = clock.seconds["decode"]
    decoded = sum(decodes[-(len(decodes) // recipe.epochs) :])
    return row | {
        "pictures": recipe.samples_per_epoch,
        "trained": int(metrics["update/trained"]),
        "sample s": metrics["seconds/sample"] - decoded,
        "decode s": decoded,
        "optimise s": metrics["seconds/optimise"],
        "evaluate s": clock.seconds["evaluate"][-1],  # the first call warms up
        "all s": time.monotonic() - begun,
        "ratio gap": metrics.get("update/ratio_gap"),
        "peak GB": torch.cuda.max_memory_allocated(device) / 1e9 if clock.cuda else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="a policy of the profile")
    parser.add_argument("--profile", default="paper")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="compile the transformer blocks")
    args = parser.parse_args()
    print(json.dumps([measure(args.policy, args.profile, args.device, Path.cwd(), args.compile)]))


if __name__ == "__main__":
    main()
