"""The section ``policies`` of ``params.yaml``: how image generators are trained, and by which recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from paco_core.config.params_base import (
    AboveZero,
    Family,
    Fraction,
    FromZero,
    Natural,
    Number,
    PolicyLora,
    Positive,
    Section,
    Seed,
    Side,
)
from paco_core.config.references import AdapterRef, ModelRef, UserFile
from paco_core.config.registered import FUNCTION, names_of, nearest, registered
from paco_core.io.files import checked_name

Loss = Annotated[str, registered("grpo/losses.py", "LOSSES", "nft")]
Dynamics = Annotated[str, registered("grpo/dynamics.py", "DYNAMICS", "ode")]
Aggregator = Annotated[str, registered("rewards/aggregation.py", "AGGREGATORS", functions=True)]


class RewardTerm(Section):
    weight: Number
    reward: str | None = None  # registered name, or module:function; null = the term's own name
    model: ModelRef | None = None
    device: str = "cpu"
    theme_from: Literal["theme", "opening"] = "theme"  # what `consistency` quotes: the record's theme, or its prompt's


class PromptFiles(Section):
    """T2IS records that come split, such as the released ones: to train on, and to evaluate and benchmark on."""

    train: UserFile
    test: UserFile


class RewardSet(Section):
    terms: dict[str, RewardTerm] = Field(min_length=1)
    aggregator: Aggregator
    tame_delta: AboveZero | Literal["mean", "median"] = 0.2
    advantage_std: Literal["group", "global"]

    @model_validator(mode="after")
    def _something_is_rewarded(self) -> RewardSet:
        if all(term.weight == 0 for term in self.terms.values()):
            raise ValueError("every reward has weight 0; nothing would be learnt")
        return self


class PolicyRecipe(Section):
    family: Family
    model: ModelRef
    start: AdapterRef | None = None  # LoRA to go on from: folder, file or hub id; null = a fresh adapter
    epochs: Natural | None = None  # null = policies.epochs; 0 = evaluate the start only
    loss: Loss | None = None  # null = policies.loss
    learning_rate: AboveZero | None = None  # null = policies.learning_rate
    reference_size: Side | None = None  # side that reference pictures are brought to; null = the picture's own
    train_size: Side
    eval_sizes: list[Side] = Field(min_length=1)
    record_size: Literal["aspect", "exact", "ignore"] = "aspect"
    sampling_steps: Positive
    noise_steps: list[Natural]
    num_noise_steps: Positive | None = None  # so many of noise_steps, drawn anew each epoch; null = all
    train_steps: list[Natural] | None = None  # null = every noise step (loss nft: every sampling step)
    dynamics: Dynamics
    noise_level: AboveZero
    shared_noise: bool = False  # one initial noise a group: steps up to the first noisy one run once a prompt
    guidance: Number
    max_sequence_length: Positive
    prompts: PromptFiles | None = None  # of sets; null = the graph's diverse prompts, some of them held back
    rewards: RewardSet
    test_rewards: RewardSet | None = None  # what evaluation asks; null = the training's rewards

    @property
    def reward_sets(self) -> dict[str, RewardSet]:
        """What is rewarded in training, and in evaluation where that has rewards of its own, by the recipe's keys."""
        both = {"rewards": self.rewards, "test_rewards": self.test_rewards}
        return {key: rewards for key, rewards in both.items() if rewards is not None}

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


class NftParams(Section):
    """Loss nft (DiffusionNFT, arXiv 2509.16117), table of its schedules in its code."""

    mix: Annotated[float, Field(gt=0, le=1)] = 1.0  # b: share of the new velocity in the implicit policies
    decay: Literal["on_policy", "slow", "late"] = "slow"  # how fast the adapter `old` follows


class KlParams(Section):
    """Distance to the policy without adapter. No reference pass is run at beta 0."""

    beta: FromZero = 0.0
    form: Literal["exact", "paper"] = "exact"


class EarlyStop(Section):
    """When to end a training before its last epoch; the outs are those of a finished one."""

    reward_rise: FromZero = 0.05  # share of the first epochs' weighted reward
    diversity_kept: Fraction = 0.5  # of the first epochs' panel diversity
    patience: Positive = 3  # epochs that both must hold; also how many first epochs are averaged
    nan: Literal["error", "stop"] = "error"  # a gradient that is not finite: fail, or end with the weights before it


def _known_rewards(recipes: dict[str, PolicyRecipe]) -> dict[str, PolicyRecipe]:
    """Every reward of every recipe is registered, or names a function of the user's own."""
    names = [name for table in ("BUILDERS", "FUNCTIONS") for name in names_of("rewards/registry.py", table)]
    for recipe, key, rewards in ((n, k, s) for n, r in recipes.items() for k, s in r.reward_sets.items()):
        for name, term in rewards.terms.items():
            asked = term.reward or name
            if asked not in names and not FUNCTION.fullmatch(asked):
                near = nearest(asked, names)
                hint = f"did you mean {near!r}? " if near else ""
                raise ValueError(
                    f"{recipe}.{key}: reward {asked!r} is unknown; {hint}Choose among {', '.join(names)}, or name "
                    "module:function"
                )
    return recipes


def _trained(recipes: dict[str, PolicyRecipe | None]) -> dict[str, PolicyRecipe]:
    """The recipes that are not null; a null one is in the graph, and nothing is trained by it."""
    trained = {name: recipe for name, recipe in recipes.items() if recipe is not None}
    if not trained:
        raise ValueError("every recipe is null; at least one is needed")
    return trained


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
    recipes: Recipes
    device: str
    dtype: Literal["float32", "mixed", "bfloat16"]
    learning_rate: AboveZero
    weight_decay: FromZero
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    max_grad_norm: AboveZero
    lora: PolicyLora
    loss: Loss
    old_log_prob: Literal["rollout", "recomputed"] = "rollout"
    max_ratio_gap: AboveZero | None = None  # null: 3 x clip_range
    clip_range: AboveZero
    max_advantage: AboveZero
    nft: NftParams = NftParams()
    kl: KlParams = KlParams()
    epochs: Positive
    prompts_per_epoch: Positive
    group_size: Annotated[Positive, Field(ge=2)]
    updates_per_epoch: Positive
    rollout_batch: Positive
    train_batch: Positive
    gradient_checkpointing: bool
    ema_decay: Fraction
    ema_every: Positive
    eval_every: Positive
    eval_batch: Positive | None = None  # pictures painted at a time; None: as in a rollout
    eval_prompts: Positive
    eval_steps: Positive
    eval_seeds: list[Seed] = Field(min_length=1)
    checkpoint_every: Positive
    keep_checkpoints: Positive = 1
    early_stop: EarlyStop | None = None
    seed: Seed

    @model_validator(mode="after")
    def _even_updates(self) -> PoliciesParams:
        if self.prompts_per_epoch % self.updates_per_epoch:
            valid = [n for n in range(1, self.prompts_per_epoch + 1) if self.prompts_per_epoch % n == 0]
            raise ValueError(
                f"updates_per_epoch={self.updates_per_epoch} does not divide prompts_per_epoch="
                f"{self.prompts_per_epoch}; valid: {valid}"
            )
        return self

    @model_validator(mode="after")
    def _steps_fit_the_loss(self) -> PoliciesParams:
        for name, recipe in self.recipes.items():
            loss = recipe.loss or self.loss
            if loss != "nft" and not recipe.noise_steps:
                raise ValueError(
                    f"recipes.{name}: loss {loss} learns from noisy steps and there are none; "
                    "name some in noise_steps, or choose loss nft"
                )
            allowed = range(recipe.sampling_steps) if loss == "nft" else recipe.noise_steps
            wrong = [s for s in recipe.train_steps or [] if s not in allowed]
            if wrong or recipe.train_steps == []:
                kind = "sampling" if loss == "nft" else "noise"
                raise ValueError(
                    f"recipes.{name}: train_steps {wrong or []} are not among the {kind} steps; "
                    f"choose from {list(allowed)}"
                )
        if self.loss == "nft" and self.old_log_prob == "recomputed":
            raise ValueError("loss nft uses no log-probabilities: leave old_log_prob at 'rollout'")
        return self

    def of(self, recipe: PolicyRecipe) -> PoliciesParams:
        """These settings with those that the recipe has of its own in place."""
        names = [name for name in ("epochs", "learning_rate", "loss") if getattr(recipe, name) is not None]
        own = {name: getattr(recipe, name) for name in names}
        if recipe.loss == "nft":
            own["old_log_prob"] = "rollout"  # it uses no log-probabilities
        return self.model_copy(update=own)
