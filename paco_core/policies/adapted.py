"""What a recipe's adapter belongs to, for those who load it without this project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.config.references import is_folder
from paco_core.io.project import owner_root
from paco_core.policies.families import edits
from paco_core.runtime.tracking.models import Adapted

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe


def adapted(root: Path, recipe: PolicyRecipe) -> Adapted:
    """The base of a recipe's adapter and, of a painter, the settings at which it is evaluated.

    A folder of the project is named by its absolute path, so that MLflow finds it from any working folder.
    """
    base = str((owner_root(root) / recipe.model).resolve()) if is_folder(root, recipe.model) else recipe.model
    side = max(recipe.eval_sizes)
    size = {"height": side, "width": side}
    defaults = {**size, "num_inference_steps": recipe.eval_steps, "guidance_scale": float(recipe.guidance)}
    return Adapted(base, None if edits(recipe) else defaults)
