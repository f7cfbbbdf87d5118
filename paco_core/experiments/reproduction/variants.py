"""What is trained: each variant is a recipe of ``params.yaml``, as it is or with some keys changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paco_core.config.changes import changed
from paco_core.config.params import Params
from paco_core.io.files import DataError
from paco_core.io.nearest import meant

FULL = "full"
LARGEST = "largest of eval_sizes"  # as a value of train_size


@dataclass(frozen=True, eq=False)
class Variant:
    """A name, words for people, and dotted keys of the recipe, behind ``recipe.``."""

    name: str
    title: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = "flux_t2is"

    def applied(self, params: Params, seed: int) -> Params:
        """The parameters under which the variant is trained; ``policies.recipes`` holds its recipe alone.

        Raises:
            DataError: when the recipe does not exist.
            ParamsError: when a changed value does not fit the others.
        """
        if self.recipe not in params.policies.recipes:
            known = ", ".join(params.policies.recipes)
            hint = meant(self.recipe, params.policies.recipes)
            raise DataError(
                f"variant {self.name}: no recipe {self.recipe!r} in policies.recipes; {hint}there are: {known}"
            )
        recipe = params.policies.recipes[self.recipe]
        place = f"policies.recipes.{self.recipe}"
        values: dict[str, Any] = {f"{place}.seed": seed}
        for key, value in self.changes.items():
            values[f"{place}.{key.partition('.')[2]}"] = max(recipe.eval_sizes) if value == LARGEST else value
        alone = params.policies.model_copy(update={"recipes": {self.recipe: recipe}})
        return changed(params.model_copy(update={"policies": alone}), values)


def _aggregated(name: str, title: str, aggregator: str | None = None) -> Variant:
    return Variant(name, title, {"recipe.rewards.aggregator": aggregator or name})


#: The paper's ablation in small (full, high resolution, no log-tame), then what else the trainer offers,
#: then the other policies.
VARIANTS: tuple[Variant, ...] = (
    Variant(FULL, "The recipe as it is: low training size, log-tamed rewards, PPO's loss on flow-SDE noise"),
    Variant("no_decoupling", "Trained at the size it is evaluated at", {"recipe.train_size": LARGEST}),
    _aggregated("no_log_tame", "Rewards summed as they are", "weighted_sum"),
    _aggregated("gdpo", "Rewards normalised one by one in each group, then over the batch (GDPO)"),
    _aggregated("mo_grpo", "Each reward divided by its group's deviation (MO-GRPO)"),
    _aggregated("weighted_advantage_sum", "Advantages of each reward summed"),
    Variant("cps", "Coefficient-preserving noise (CPS) instead of flow-SDE's", {"recipe.dynamics": "cps"}),
    Variant("guard", "Ratios freed of drift and scale (GRPO-Guard)", {"recipe.loss": "grpo_guard"}),
    Variant(
        "nft",
        "Learns on clean pictures noised anew, samples without noise (DiffusionNFT)",
        {
            "recipe.loss": "nft",
            "recipe.dynamics": "ode",
            "recipe.noise_steps": [],
            "recipe.num_noise_steps": None,
            "recipe.train_steps": None,
            "recipe.shared_noise": False,  # without noise steps a group of one noise would be one picture
        },
    ),
    Variant("kontext", "The editing policy as it is: FLUX Kontext, rewarded for edits", recipe="kontext_edit"),
    Variant("qwen", "The editing policy as it is: Qwen-Image-Edit, rewarded for edits", recipe="qwen_edit"),
)


def chosen(names: Sequence[str] | None, recipes: Collection[str]) -> list[Variant]:
    """Variants by name, in the order of the table; when None, all whose recipe is one of ``recipes``.

    Raises:
        DataError: naming an unknown one.
    """
    if names is None:
        return [variant for variant in VARIANTS if variant.recipe in recipes]
    known = {variant.name: variant for variant in VARIANTS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise DataError(
            f"no variant {', '.join(map(repr, unknown))}; {meant(unknown[0], known)}there are: {', '.join(known)}"
        )
    return [variant for variant in VARIANTS if variant.name in names]


def plain_of(recipe: str) -> str:
    """The variant that changes nothing of its recipe: what the others are compared with."""
    return next(variant.name for variant in VARIANTS if variant.recipe == recipe and not variant.changes)
