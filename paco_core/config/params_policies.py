"""The section ``policies`` of ``params.yaml``: how image generators are trained, and by which recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_validator,
)

from paco_core.config.execution import RenamedFrom, execution_fields
from paco_core.config.params_base import (
    DISTINCT,
    AboveZero,
    Family,
    Natural,
    Number,
    Positive,
    Section,
    Side,
)
from paco_core.config.params_losses import OFFLINE
from paco_core.config.params_rewards import RewardSet, validate_hack_meter, validate_reward_names
from paco_core.config.params_training import PolicyTraining
from paco_core.config.references import AdapterRef, PolicyRef, PreferencesFolder, UserFile, WeightsRef
from paco_core.config.registered import registered
from paco_core.io.files import DataError, checked_name
from paco_core.io.messages import did_you_mean

Dynamics = Annotated[str, registered("grpo/dynamics.py", "DYNAMICS", "ode")]


class PromptFiles(Section):
    """T2IS records with a fixed split: for training, and for evaluation and benchmarks."""

    train: UserFile
    """JSON Lines file of T2IS records with the training prompts."""
    test: UserFile
    """Evaluation prompts, in the same format."""


def _own_and_shared(schema: dict[str, Any]) -> None:
    """In a file, a recipe can leave out a shared key or set it to null, and inherits ``policies.defaults``."""
    for name in PolicyTraining.model_fields:
        key_schema = schema["properties"].pop(name)
        if name in execution_fields(PolicyTraining):
            continue
        key_schema.pop("default", None)
        key_schema.pop("description", None)
        schema["properties"][name] = {
            "anyOf": [key_schema, {"type": "null"}],
            "description": f"Overrides `policies.defaults.{name}`.",
        }


class PolicyRecipe(PolicyTraining):
    """A complete recipe: its own keys, and the values of ``policies.defaults`` that it does not override.

    ``model_fields_set`` names the keys that the recipe sets itself.
    """

    model_config = ConfigDict(json_schema_extra=_own_and_shared)

    family: Family
    """Model family."""
    task: Literal["sets", "edits"] | None = None
    """Training task: sets or edits. `null` uses the task of the model family, or `sets` if the family supports both
    tasks."""
    model: PolicyRef
    """Image generator (hub ID, or folder in the layout of diffusers)."""
    transformer: WeightsRef | None = None
    """Transformer weights in one `.safetensors` file, as image tools ship them (file, or folder with only this file).
    The other parts come from `model`. `null` uses the transformer of `model`. Other stages, such as `grids` and
    `edits`, read only complete folders."""
    start: AdapterRef | None = None
    """LoRA adapter whose training continues (folder, file or hub ID). `null` starts with a new adapter."""
    epochs_before: Natural = 0
    """Number of epochs for which `start` was already trained with the same seed. The next epochs then use new prompts
    and noise."""
    reference_size: Side | None = None
    """Size of a reference image after resizing: the side in pixels of a square with the same area. `null` uses the size
    of the output image."""
    panels: Literal["together", "one_by_one"] = "together"
    """Generate all panels in one image (`together`), or one after another (`one_by_one`, a story). In a story,
    images of the characters that a panel names and earlier panels are its references."""
    predecessors: Positive | None = None
    """In a story, the maximum number of earlier panels that are references of the next panel. `null` uses the maximum
    of the model family. Images of characters come first and count towards this maximum of the family."""
    train_size: Side
    """Side in pixels of a training image with one panel or 2x2 panels. In other layouts, a panel has the same size as
    one of 2x2 panels."""
    eval_sizes: Annotated[list[Side], Field(min_length=1), DISTINCT]
    """Sides of the evaluation images, in pixels."""
    record_size: Literal["aspect", "exact", "ignore"] = "aspect"
    """Use of the height and width of a prompt record: only their proportions (`aspect`), as the exact size
    (`exact`), or not at all (`ignore`)."""
    sampling_steps: Positive
    """Sampling steps of a rollout."""
    noise_steps: list[Natural]
    """Sampling steps that inject noise."""
    num_noise_steps: Positive | None = None
    """Number of noise steps that paco selects at random from `noise_steps` in each epoch. `null` uses all of
    `noise_steps`."""
    train_steps: Annotated[list[Natural], DISTINCT] | None = None
    """Noise steps to train. For the losses nft, dpo and sft: sampling steps to train. `null` trains all of these
    steps."""
    dynamics: Dynamics
    """Rule that injects noise in a step."""
    noise_level: AboveZero
    """Scale of the injected noise (eta)."""
    shared_noise: bool = False
    """Use the same initial noise for all images of a group. The steps before the first noise step then run only once
    per prompt."""
    guidance: Number
    """Guidance scale."""
    max_sequence_length: Positive
    """Maximum prompt tokens."""
    preferences: PreferencesFolder | None = None
    """Folder with rankings of images, for the losses dpo and sft. `null` uses the rankings of the graph."""
    prompts: PromptFiles | None = None  # of sets; null = the graph's diverse prompts, some of them held back
    rewards: RewardSet
    test_rewards: RewardSet | None = None  # what evaluation asks; null = the training's rewards

    @property
    def paints_stories(self) -> bool:
        """Whether the panels of a set are generated one by one."""
        return self.panels == "one_by_one"

    @property
    def reward_sets(self) -> dict[str, RewardSet]:
        """The rewards of the training and, if the recipe sets them, of the evaluation, by key."""
        rewards_by_key = {"rewards": self.rewards, "test_rewards": self.test_rewards}
        return {key: rewards for key, rewards in rewards_by_key.items() if rewards is not None}

    @model_validator(mode="after")
    def _noise_inside_schedule(self) -> PolicyRecipe:
        outside = [s for s in self.noise_steps if not 0 <= s < self.sampling_steps - 1]
        if outside:
            raise ValueError(
                f"noise_steps {outside} lie outside the schedule; with sampling_steps="
                f"{self.sampling_steps} choose from 0..{self.sampling_steps - 2} "
                "(the last step ends at sigma 0 and has no noise)"
            )
        if len(set(self.noise_steps)) != len(self.noise_steps):
            raise ValueError(f"noise_steps {self.noise_steps} name a step twice")
        if (self.dynamics == "ode") != (not self.noise_steps):
            raise ValueError("dynamics 'ode' has no noise: give it noise_steps [] (and only it)")
        return self

    @model_validator(mode="after")
    def _drawn_steps(self) -> PolicyRecipe:
        if self.num_noise_steps is None:
            return self
        if self.num_noise_steps > len(self.noise_steps):
            raise ValueError(
                f"num_noise_steps={self.num_noise_steps}, but noise_steps names only {len(self.noise_steps)}; "
                f"choose at most {len(self.noise_steps)}"
            )
        if self.train_steps is not None:
            raise ValueError("with num_noise_steps every drawn step is trained: leave train_steps null")
        return self

    @model_validator(mode="after")
    def _steps_fit_the_loss(self) -> PolicyRecipe:
        if not self.forward and not self.noise_steps:
            raise ValueError(
                f"loss {self.loss} learns from noisy steps and there are none; name some in noise_steps, or choose "
                "loss nft"
            )
        allowed = range(self.sampling_steps) if self.forward else self.noise_steps
        wrong = [s for s in self.train_steps or [] if s not in allowed]
        if wrong or self.train_steps == []:
            kind = "sampling" if self.forward else "noise"
            raise ValueError(f"train_steps {wrong or []} are not among the {kind} steps; choose from {list(allowed)}")
        return self

    @model_validator(mode="after")
    def _panels_are_painted(self) -> PolicyRecipe:
        if self.paints_stories and self.offline:
            raise ValueError(
                f"loss {self.loss} learns from images with all panels in one; choose another loss, or panels: together"
            )
        if self.panels == "together" and self.predecessors is not None:
            raise ValueError("predecessors is for panels: one_by_one; set that, or leave predecessors null")
        return self

    @model_validator(mode="after")
    def _preferences_are_learnt_from(self) -> PolicyRecipe:
        if self.preferences is not None and not self.offline:
            raise ValueError(
                f"loss {self.loss} learns from its own pictures, not from preferences; choose loss "
                f"{' or '.join(OFFLINE)}, or leave preferences null"
            )
        return self

    @model_validator(mode="after")
    def _judges_are_compared(self) -> PolicyRecipe:
        if self.hack_meter is not None:
            validate_hack_meter(self.hack_meter, self.reward_sets)
        elif self.early_stop is not None and self.early_stop.hack_meter:
            raise ValueError("early_stop.hack_meter uses the alarm of hack_meter: set trained and held_out there")
        elif self.kl.where == "disagreement":
            raise ValueError("kl.where: disagreement needs hack_meter: set trained and held_out there")
        return self

    @property
    def held_out_judge(self) -> str | None:
        """Folder of the held-out reward model of ``hack_meter``; None if it does not score pairs."""
        if self.hack_meter is None:
            return None
        term = self.rewards.terms[self.hack_meter.held_out]
        return term.model if (term.reward or self.hack_meter.held_out) == "consistency" else None

    def inherited(self) -> set[str]:
        """Names of the keys that the recipe inherits from ``policies.defaults``."""
        return set(PolicyTraining.model_fields) - self.model_fields_set


def _trained(recipes: dict[str, PolicyRecipe | None]) -> dict[str, PolicyRecipe]:
    """The recipes that are not null. A null recipe is in the graph, but is not trained."""
    trained = {name: recipe for name, recipe in recipes.items() if recipe is not None}
    if not trained:
        raise ValueError("every recipe is null; at least one is needed")
    return trained


def _known_rewards(recipes: dict[str, PolicyRecipe]) -> dict[str, PolicyRecipe]:
    for name, recipe in recipes.items():
        for key, rewards in recipe.reward_sets.items():
            validate_reward_names(rewards, f"{name}.{key}")
    return recipes


if TYPE_CHECKING:
    Recipes = dict[str, PolicyRecipe]
else:
    Recipes = Annotated[
        dict[Annotated[str, AfterValidator(checked_name)], PolicyRecipe | None],
        Field(min_length=1),
        AfterValidator(_trained),
        AfterValidator(_known_rewards),
    ]


class PoliciesParams(Section):
    defaults: Annotated[PolicyTraining, RenamedFrom("policies")]
    recipes: Recipes

    @field_validator("recipes", mode="wrap")
    @classmethod
    def _over_the_defaults(cls, recipes: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Merge each recipe with the defaults, here and nowhere else."""
        if not isinstance(recipes, dict):
            return check(recipes)
        if "defaults" not in info.data:
            return {}  # the defaults are invalid, and recipes cannot be merged with them
        for name, overrides in recipes.items():
            if isinstance(overrides, dict) and (
                execution_keys := sorted(execution_fields(PolicyTraining) & set(overrides))
            ):
                raise ValueError(
                    f"{name}.{execution_keys[0]}: all recipes share this key; set "
                    f"execution.policies.{execution_keys[0]}"
                )
        shared = info.data["defaults"].model_dump(mode="json")
        merged = check({name: _laid_over(shared, overrides) for name, overrides in recipes.items()})
        return {name: _with_own_keys(recipe, recipes[name]) for name, recipe in merged.items()}

    def recipe(self, name: str) -> PolicyRecipe:
        """A recipe by its name.

        Raises:
            DataError: listing the known recipes.
        """
        if name not in self.recipes:
            names = ", ".join(self.recipes)
            raise DataError(
                f"no recipe {name!r} in policies.recipes; {did_you_mean(name, self.recipes)}there are: {names}"
            )
        return self.recipes[name]

    @property
    def device(self) -> str:
        """Device of the stages of policies: a GPU if at least one recipe uses it."""
        devices = [recipe.device for recipe in self.recipes.values()]
        return next((device for device in devices if device != "cpu"), "cpu")

    @field_serializer("recipes")
    def _as_in_the_file(self, recipes: dict[str, PolicyRecipe], info: FieldSerializationInfo) -> dict[str, Any]:
        return {name: r.model_dump(mode=info.mode, exclude=r.inherited()) for name, r in recipes.items()}


def _laid_over(shared: dict[str, Any], overrides: Any) -> Any:
    """A recipe over the defaults; a null leaves the default."""
    if not isinstance(overrides, dict):
        return overrides
    values = {key: value for key, value in overrides.items() if value is not None or key not in shared}
    if values.get("loss") in ("nft", *OFFLINE):
        values.setdefault("old_log_prob", "rollout")  # it uses no log-probabilities, whatever the others use
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(shared.get(key), dict):
            values[key] = {**shared[key], **value}
    return {**shared, **values}


def _with_own_keys(recipe: PolicyRecipe, overrides: Any) -> PolicyRecipe:
    if not isinstance(overrides, dict):
        return recipe
    keys = {key for key, value in overrides.items() if value is not None}
    return PolicyRecipe.model_construct(_fields_set=keys, **dict(recipe))
