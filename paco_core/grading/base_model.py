"""Base model of a comparison, with the settings of its images: those of a recipe, or of its family."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import snapshot_download

from paco_core.config.references import is_folder, model_at, weights_file
from paco_core.io.files import DataError
from paco_core.io.messages import did_you_mean
from paco_core.models.content import content_of
from paco_core.models.hub import from_hub
from paco_core.models.pipeline_index import INDEXES, find_index, read_index
from paco_core.policies.base import load_policy
from paco_core.policies.families import FAMILIES, family_of, is_distilled
from paco_core.sampling.origin import ModelVersion
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of

if TYPE_CHECKING:
    from paco_core.config.params import Params, PolicyRecipe
    from paco_core.policies.base import Policy

SIDE, TEXT_TOKENS = 512, 512


@dataclass(frozen=True)
class GradedBase:
    """The base model, and how it generates.

    Attributes:
        model: folder or hub id.
        dtype, base: number formats, as of :func:`paco_core.policies.base.load_policy`.
        size: side of an image with one panel or 2x2 panels, in pixels.
        transformer: file of the transformer's weights; None = those of the model.
    """

    model: Path | str
    family: str
    device: str
    dtype: str
    base: str | None
    guidance: float
    max_sequence_length: int
    size: int
    steps: int
    transformer: Path | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Everything but the weights that determines an image; the kind of the device, not its number."""
        return {**asdict(self), "model": "", "transformer": "", "device": self.device.partition(":")[0]}

    @cached_property
    def version(self) -> ModelVersion:
        """Version of the model. Outside of a project, its files are read for it."""
        return ModelVersion.from_source(self.model)

    @cached_property
    def content(self) -> str:
        """Version of all weights."""
        model = self.version.version or self.version.name
        return f"{model} {'' if self.transformer is None else content_of(self.transformer)}"

    def load(self, cache: Path) -> Policy:
        """Load the model; ``cache`` is the folder of encoded prompts."""
        return load_policy(
            self.family, str(self.model), self.device, self.dtype, task="sets", cache=cache, base=self.base,
            transformer=self.transformer,
        )  # fmt: skip

    @classmethod
    def from_recipe(cls, root: Path, params: Params, recipe: PolicyRecipe) -> GradedBase:
        """The model and settings of a recipe."""
        model = model_at(root, recipe.model, "policies.recipes.*.model")
        return cls(
            model, recipe.family, recipe.device, recipe.dtype, recipe.base, recipe.guidance,
            recipe.max_sequence_length, max(recipe.eval_sizes), params.t2is.steps,
            None if recipe.transformer is None else weights_file(root, recipe.transformer),
        )  # fmt: skip


def recipes_for(root: Path, params: Params, model: str | None) -> dict[str, PolicyRecipe]:
    """The recipes for sets that use one model, by name: that of a recipe's name, a model, or None for the first recipe.

    Empty, if no recipe uses the model.
    """
    recipes = recipes_of(SETS, params.policies)
    first = recipes.get(str(model)) or next(
        (recipe for recipe in recipes.values() if model is None or _is_model(root, recipe.model, model)), None
    )
    if first is None:
        return {}
    weights = first.model, first.transformer
    return {name: recipe for name, recipe in recipes.items() if (recipe.model, recipe.transformer) == weights}


def _is_model(root: Path, first: str, second: str) -> bool:
    return first == second or (is_folder(root, first) and (root / first).resolve() == Path(second).resolve())


def graded_base(root: Path | None, params: Params | None, model: str | None) -> GradedBase:
    """The base model of a comparison.

    Args:
        model: a recipe of the project, a folder, or a hub id; None is the model of the project's first recipe.

    Raises:
        DataError: when there is no such model, or it is none that generates from text.
    """
    if root is not None and params is not None:
        recipes = recipes_for(root, params, model)
        if recipes:
            return GradedBase.from_recipe(root, params, recipes.get(str(model)) or next(iter(recipes.values())))
        if model is None:
            raise DataError("no recipe of policies.recipes generates from text; name a base model with --model")
    if model is None:
        raise DataError("name the base model of the adapters: --model FOLDER, or OWNER/NAME on the hub")
    if "/" not in model and not Path(model).is_dir():
        names = list(recipes_of(SETS, params.policies)) if params is not None else []
        raise DataError(
            f"{model!r} is neither a folder nor a hub id (OWNER/NAME){', nor a recipe' if names else ''}; "
            f"{did_you_mean(model, names)}name the base model of the adapters"
        )
    here = Path(model)
    place = here if here.is_dir() else model_at(root or Path(), model, "--model")
    family = _family(place)
    spec = family_of(family)
    guidance, steps = spec.distilled if is_distilled(Path(), str(place)) else spec.recommended
    device, dtype = _device(params)
    return GradedBase(place, family, device, dtype, None, guidance, TEXT_TOKENS, SIDE, steps)


def _device(params: Params | None) -> tuple[str, str]:
    device = params.policies.defaults.device if params else "cuda" if torch.cuda.is_available() else "cpu"
    return device, "bfloat16" if device.startswith("cuda") else "float32"


def _family(model: Path | str) -> str:
    """The family of a pipeline that generates from text."""
    folder = Path(model)
    if isinstance(model, Path) and find_index(folder) is None:
        raise DataError(f"{model}: there is no diffusers pipeline (no {' or '.join(INDEXES)}); name its folder")
    if find_index(folder) is None:
        with from_hub(model):
            folder = Path(snapshot_download(str(model), allow_patterns=list(INDEXES)))
    pipeline = read_index(folder).get("_class_name")
    name = next((name for name, family in FAMILIES.items() if family.pipeline == pipeline), None)
    if name is None or FAMILIES[name].references[0]:
        supported = ", ".join(family.pipeline for family in FAMILIES.values() if not family.references[0])
        raise DataError(f"{model}: contains a {pipeline}; adapters can be compared on {supported}")
    return name
