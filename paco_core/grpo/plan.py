"""The arithmetic of a policy's training, told before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

from paco_core.files import DataError
from paco_core.params import Params


@dataclass(frozen=True)
class Plan:
    """What one training will do. ``passes`` are transformer passes of one sample."""

    images_an_epoch: int
    pairs_a_set: int
    rollout_batches: int
    rollout_passes: int  # an epoch
    trained_passes: int  # an epoch, each forward and backward
    micro_batches: int  # an update
    optimiser_steps: int
    evaluations: int
    evaluation_images: int  # an evaluation
    epochs: int

    @classmethod
    def of(cls, params: Params, policy: str) -> Plan:
        """Count the work of one recipe.

        Raises:
            DataError: when there is no recipe of that name.
        """
        grpo = params.policies
        if policy not in grpo.recipes:
            raise DataError(f"no recipe {policy!r} in policies.recipes; there are: {', '.join(grpo.recipes)}")
        recipe = grpo.recipes[policy]
        images = grpo.prompts_per_epoch * grpo.group_size
        common = min(recipe.noise_steps) if recipe.shared_noise else 0
        rows, columns = (int(n) for n in params.prompts.layout.split("x"))
        panels = rows * columns
        an_update = images // grpo.updates_per_epoch
        return cls(
            images_an_epoch=images,
            pairs_a_set=panels * (panels - 1) // 2,
            rollout_batches=-(-images // grpo.rollout_batch),
            rollout_passes=images * (recipe.sampling_steps - common) + grpo.prompts_per_epoch * common,
            trained_passes=images * len(recipe.noise_steps),
            micro_batches=-(-an_update // grpo.train_batch) * len(recipe.noise_steps),
            optimiser_steps=grpo.epochs * grpo.updates_per_epoch,
            evaluations=2 + (grpo.epochs - 1) // grpo.eval_every,
            evaluation_images=grpo.eval_prompts * len(grpo.eval_seeds) * len(recipe.eval_sizes),
            epochs=grpo.epochs,
        )


def plan(params: Params, policy: str) -> str:
    """The plan of one recipe as text: one line a figure, with how it comes about.

    Raises:
        DataError: when there is no recipe of that name.
    """
    done = Plan.of(params, policy)
    grpo = params.policies
    recipe = grpo.recipes[policy]
    asks = done.images_an_epoch * done.pairs_a_set if "consistency" in recipe.rewards.terms else 0
    sizes = " and ".join(f"{side} px" for side in recipe.eval_sizes)
    return "\n".join(
        [
            f"{policy}: {recipe.model}, {grpo.epochs} epochs at {recipe.train_size} px, evaluated at {sizes}",
            f"images an epoch      {done.images_an_epoch} = {grpo.prompts_per_epoch} prompts x {grpo.group_size}",
            f"sampling             {done.rollout_batches} batches of {grpo.rollout_batch}, {done.rollout_passes} "
            f"passes ({recipe.sampling_steps} steps, noise at {recipe.noise_steps})",
            f"scoring              {asks} distinct pairs ({done.pairs_a_set} a set), "
            f"rewards {', '.join(recipe.rewards.terms)} by {recipe.rewards.aggregator}",
            f"training             {done.trained_passes} passes with backward, {grpo.updates_per_epoch} updates of "
            f"{done.micro_batches} micro-batches of {grpo.train_batch}",
            f"optimiser steps      {done.optimiser_steps} in all, averaged every {grpo.ema_every}",
            f"evaluations          {done.evaluations}, {done.evaluation_images} pictures each, {grpo.eval_steps} steps",
            f"in all               {done.epochs * done.images_an_epoch} images, {done.epochs * asks} scored pairs, "
            f"{done.epochs * (done.rollout_passes + done.trained_passes)} passes without evaluation",
        ]
    )
