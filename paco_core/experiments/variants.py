"""Variants of an experiment: each is a recipe of ``params.yaml``, with some keys changed or with none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from paco_core.config.params import Params
from paco_core.experiments.grid import Cell, Variant
from paco_core.io.files import DataError
from paco_core.io.messages import did_you_mean
from paco_core.tasks.table import task_of

SETS = "flux_t2is"
LARGEST = "largest of eval_sizes"  # as a value of train_size


def build_recipe_cell(variant: Variant, params: Params, seed: int, changes: Mapping[str, Any]) -> Cell:
    """The training of a variant under a seed, measured by its task's benchmark; no other recipe is trained or measured.

    Args:
        params: as :func:`paco_core.experiments.grid.begin` returns them.
        changes: those of all cells.

    Raises:
        DataError: when the recipe does not exist.
    """
    name = str(variant.recipe)
    recipe = params.policies.recipe(name)
    place = f"policies.recipes.{name}"
    values = {key: max(recipe.eval_sizes) if value == LARGEST else value for key, value in variant.changes.items()}
    return Cell(
        variant,
        seed,
        task_of(recipe).benchmark,
        {
            **changes,
            **{f"policies.recipes.{other}": None for other in params.policies.recipes if other != name},
            **{f"{place}.{key.removeprefix('recipe.')}": value for key, value in values.items()},
            f"{place}.seed": seed,
        },
    )


def _aggregated(name: str, title: str, aggregator: str) -> Variant:
    return Variant(name, title, {"recipe.rewards.aggregator": aggregator}, SETS)


#: The paper's ablation in small (full, high resolution, no log-tame), then what else the trainer offers,
#: then the other policies.
VARIANTS: tuple[Variant, ...] = (
    Variant("full", "The recipe as it is: low training size, log-tamed rewards, PPO's loss, flow-SDE noise", {}, SETS),
    Variant("no_decoupling", "Trained at the size it is evaluated at", {"recipe.train_size": LARGEST}, SETS),
    _aggregated("no_log_tame", "Rewards summed as they are", "weighted_sum"),
    _aggregated("gdpo", "Rewards normalised one by one in each group, then over the batch (GDPO)", "gdpo"),
    _aggregated("mo_grpo", "Each reward divided by its group's deviation (MO-GRPO)", "mo_grpo"),
    _aggregated("weighted_advantage_sum", "Advantages of each reward summed", "weighted_advantage_sum"),
    Variant("cps", "Coefficient-preserving noise (CPS) instead of flow-SDE's", {"recipe.dynamics": "cps"}, SETS),
    Variant("guard", "Ratios freed of drift and scale (GRPO-Guard)", {"recipe.loss": "grpo_guard"}, SETS),
    Variant(
        "nft",
        "Learns from clean images with new noise, samples without noise (DiffusionNFT)",
        {
            "recipe.loss": "nft",
            "recipe.dynamics": "ode",
            "recipe.noise_steps": [],
            "recipe.num_noise_steps": None,
            "recipe.train_steps": None,
            "recipe.shared_noise": False,  # without noise steps a group of one noise would be one picture
        },
        SETS,
    ),
    Variant("kontext", "The editing policy as it is: FLUX Kontext, rewarded for edits", {}, "kontext_edit"),
    Variant("qwen", "The editing policy as it is: Qwen-Image-Edit, rewarded for edits", {}, "qwen_edit"),
)


def select_variants(names: Sequence[str] | None, recipes: Collection[str]) -> list[Variant]:
    """Variants by name, in the order of the table; when None, all whose recipe is one of ``recipes``.

    Raises:
        DataError: naming an unknown one.
    """
    if names is None:
        return [variant for variant in VARIANTS if variant.recipe in recipes]
    available = [variant.name for variant in VARIANTS]
    unknown = [name for name in names if name not in available]
    if unknown:
        raise DataError(
            f"no variant {', '.join(map(repr, unknown))}; {did_you_mean(unknown[0], available)}"
            f"there are: {', '.join(available)}"
        )
    return [variant for variant in VARIANTS if variant.name in names]
