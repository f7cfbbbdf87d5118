"""How much work a policy's training is: passes, questions, updates and evaluations, counted."""

from __future__ import annotations

from dataclasses import dataclass

from paco_core.config.params import Params, PoliciesParams, PolicyRecipe
from paco_core.io.files import DataError
from paco_core.policies.families import family_of
from paco_core.rewards import registry


def evaluations_of(epochs: int, every: int) -> int:
    """Evaluations of a training: before it, every so many epochs, and after the last one."""
    return 2 + max(0, epochs - 1) // every


@dataclass(frozen=True)
class Workload:
    """What one training will do. ``passes`` are transformer passes of one sample; a guided step may take two."""

    images_an_epoch: int
    questions_a_picture: int  # distinct ones, to a reward model: the pairs of a set's panels, or two about an edit
    rollout_batches: int
    rollout_passes: int  # an epoch
    trained_passes: int  # an epoch, each forward and backward
    untrained_passes: int  # an epoch, beside the trained ones: old policy and reference
    micro_batches: int  # an update
    optimiser_steps: int
    evaluations: int
    evaluation_images: int  # an evaluation
    epochs: int

    @classmethod
    def of(cls, params: Params, policy: str) -> Workload:
        """Count the work of one recipe.

        Raises:
            DataError: when there is no recipe of that name.
        """
        grpo = params.policies
        if policy not in grpo.recipes:
            raise DataError(f"no recipe {policy!r} in policies.recipes; there are: {', '.join(grpo.recipes)}")
        recipe = grpo.recipes[policy]
        grpo = grpo.of(recipe)
        images = grpo.prompts_per_epoch * grpo.group_size
        noisy = recipe.num_noise_steps or len(recipe.noise_steps)
        trained = len(recipe.train_steps) if recipe.train_steps else noisy
        if grpo.loss == "nft" and recipe.train_steps is None:
            trained = recipe.sampling_steps
        each = family_of(recipe.family).passes_a_step(recipe.guidance)
        # Samples that share their initial noise share the passes up to the first noisy step, this one included.
        first = min(recipe.noise_steps, default=recipe.sampling_steps - 1)
        common = first + 1 if recipe.shared_noise else 0
        shares = recipe.shared_noise and grpo.loss != "nft" and first in (recipe.train_steps or [first])
        apart, together = trained - shares, int(shares)
        an_update = images // grpo.updates_per_epoch
        groups = -(-an_update // grpo.group_size)
        passes = each * (images * apart + grpo.prompts_per_epoch * together)
        return cls(
            images_an_epoch=images,
            questions_a_picture=_questions(params, recipe),
            rollout_batches=-(-images // grpo.rollout_batch),
            rollout_passes=each * (images * (recipe.sampling_steps - common) + grpo.prompts_per_epoch * common),
            trained_passes=passes,
            untrained_passes=passes * _other_passes(grpo),
            micro_batches=-(-an_update // grpo.train_batch) * apart + -(-groups // grpo.train_batch) * together,
            optimiser_steps=grpo.epochs * grpo.updates_per_epoch,
            evaluations=evaluations_of(grpo.epochs, grpo.eval_every),
            evaluation_images=grpo.eval_prompts * len(grpo.eval_seeds) * len(recipe.eval_sizes),
            epochs=grpo.epochs,
        )


def _questions(params: Params, recipe: PolicyRecipe) -> int:
    """Questions that the judged rewards of a recipe ask about one picture."""
    rows, columns = (int(n) for n in params.prompts.layout.split("x"))
    panels = rows * columns
    asked = {"consistency": panels * (panels - 1) // 2, "editing": 2}
    return sum(asked.get(registry.kind(name, term), 0) for name, term in recipe.rewards.terms.items())


def _other_passes(grpo: PoliciesParams) -> int:
    """Passes without gradient beside each trained one: the old policy's and the reference's, where they are needed."""
    old = grpo.loss == "nft" or grpo.old_log_prob == "recomputed"
    return int(old) + int(grpo.kl.beta > 0)
