"""Base model and generation settings of an adapter, for use without this project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.config.references import is_folder
from paco_core.io.project import owner_root
from paco_core.policies.families import is_editing
from paco_core.runtime.tracking.models import Adapted

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe


def adapter_base(root: Path, recipe: PolicyRecipe) -> Adapted:
    """Return the base model of a recipe's adapter and, unless it edits, the settings of its evaluation.

    A folder of the project is an absolute path, so MLflow can load it from any working directory.
    """
    base = str((owner_root(root) / recipe.model).resolve()) if is_folder(root, recipe.model) else recipe.model
    side = max(recipe.eval_sizes)
    size = {"height": side, "width": side}
    defaults = {**size, "num_inference_steps": recipe.eval_steps, "guidance_scale": float(recipe.guidance)}
    return Adapted(base, None if is_editing(recipe) else defaults)
