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
    """weight of the reward; 0 = only measured"""
    reward: str | None = None
    """registered name or `module:function`; null = the term's own name"""
    model: ModelRef | None = None
    """model that the reward uses"""
    device: str = "cpu"
    """where that model runs"""
    theme_from: Literal["theme", "opening"] = "theme"
    """what the question quotes; the record's theme, or its prompt's opening"""


class PromptFiles(Section):
    """T2IS records that come split, such as the released ones: to train on, and to evaluate and benchmark on."""

    train: UserFile
    """JSON Lines of T2IS records to train on, instead of the graph's"""
    test: UserFile
    """JSON Lines of T2IS records to evaluate on"""


class RewardSet(Section):
    terms: dict[str, RewardTerm] = Field(min_length=1)
    aggregator: Aggregator
    """how rewards become one advantage; a function of `paco_core/rewards/aggregation.py`"""
    tame_delta: AboveZero | Literal["mean", "median"] = 0.2
    """variation above which the aggregator log_tame tames a reward, a number or a statistic of all"""
    advantage_std: Literal["group", "global"]
    """deviation by which advantages are divided, of the group or of the batch"""

    @model_validator(mode="after")
    def _something_is_rewarded(self) -> RewardSet:
        if all(term.weight == 0 for term in self.terms.values()):
            raise ValueError("every reward has weight 0; nothing would be learnt")
        return self


class PolicyRecipe(Section):
    family: Family
    """an entry of `paco_core/policies/families.py`"""
    model: ModelRef
    """generator, a folder or hub id"""
    start: AdapterRef | None = None
    """LoRA to go on from, a folder, file or hub id; null = a fresh adapter"""
    epochs: Natural | None = None
    """instead of `policies.epochs`; 0 = only evaluate the start"""
    loss: Loss | None = None
    """instead of `policies.loss`"""
    learning_rate: AboveZero | None = None
    """instead of `policies.learning_rate`"""
    reference_size: Side | None = None
    """pixels of the square that reference pictures are brought to, in their own proportions; null = as the painted
    picture"""
    train_size: Side
    """pixels of a training picture's side, all panels together"""
    eval_sizes: list[Side] = Field(min_length=1)
    """pixels of an evaluated picture's side"""
    record_size: Literal["aspect", "exact", "ignore"] = "aspect"
    """whether a record's own height and width are proportions, sizes, or nothing"""
    sampling_steps: Positive
    """steps of a rollout"""
    noise_steps: list[Natural]
    """steps at which noise is injected"""
    num_noise_steps: Positive | None = None
    """so many of noise_steps, drawn anew each epoch; null = all"""
    train_steps: list[Natural] | None = None
    """noise steps that are trained (loss nft, sampling steps); null = all"""
    dynamics: Dynamics
    """how noise enters a step; an entry of `paco_core/grpo/dynamics.py`"""
    noise_level: AboveZero
    """size of the injected noise (eta)"""
    shared_noise: bool = False
    """one initial noise a group: the steps up to the first noisy one run once a prompt"""
    guidance: Number
    """guidance scale"""
    max_sequence_length: Positive
    """tokens of a prompt that the text encoder reads"""
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

    mix: Annotated[float, Field(gt=0, le=1)] = 1.0
    """b of the loss nft, the share of the new velocity in the implicit policies"""
    decay: Literal["on_policy", "slow", "late"] = "slow"
    """how fast the adapter `old` follows"""


class KlParams(Section):
    """Distance to the policy without adapter. No reference pass is run at beta 0."""

    beta: FromZero = 0.0
    """weight of the distance to the model without adapter; 0 = no such pass"""
    form: Literal["exact", "paper"] = "exact"
    """exact, or divided by the step's deviation as in the paper"""


class EarlyStop(Section):
    """When to end a training before its last epoch; the outs are those of a finished one."""

    reward_rise: FromZero = 0.05
    """rise of the weighted reward that a training must keep, as a share of its first epochs'"""
    diversity_kept: Fraction = 0.5
    """share of the first epochs' panel diversity below which a training ends"""
    patience: Positive = 3
    """epochs that both must hold; also how many first epochs are averaged"""
    nan: Literal["error", "stop"] = "error"
    """what a gradient that is not finite does"""


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
    """where policies train"""
    dtype: Literal["float32", "mixed", "bfloat16"]
    """number format of the generator's weights; the adapter's are float32; mixed = float32, and pictures, but no
    trained step, in bfloat16 where the device computes it"""
    learning_rate: AboveZero
    """learning rate of AdamW"""
    weight_decay: FromZero
    """weight decay of AdamW"""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """AdamW, or with 8-bit moments (bitsandbytes)"""
    max_grad_norm: AboveZero
    """norm that gradients are clipped to"""
    lora: PolicyLora
    loss: Loss
    """a loss of `paco_core/grpo/losses.py`"""
    old_log_prob: Literal["rollout", "recomputed"] = "rollout"
    """log p from the rollout, or from one more pass before the first update"""
    max_ratio_gap: AboveZero | None = None
    """largest |ratio - 1| before the first update that training, promotion and the check accept; null = 3 x
    clip_range"""
    clip_range: AboveZero
    """clipping of the probability ratio"""
    max_advantage: AboveZero
    """advantages are clipped to this"""
    nft: NftParams = NftParams()
    kl: KlParams = KlParams()
    epochs: Positive
    """rounds of sampling and learning"""
    prompts_per_epoch: Positive
    """prompts of an epoch"""
    group_size: Annotated[Positive, Field(ge=2)]
    """pictures of each prompt"""
    updates_per_epoch: Positive
    """optimiser steps of an epoch"""
    rollout_batch: Positive
    """pictures sampled at a time"""
    train_batch: Positive
    """pictures of a trained pass"""
    gradient_checkpointing: bool
    """compute blocks again in the backward pass instead of keeping them"""
    ema_decay: Fraction
    """decay of the averaged weights"""
    ema_every: Positive
    """optimiser steps between averages"""
    eval_every: Positive
    """epochs between evaluations"""
    eval_batch: Positive | None = None
    """pictures painted at a time in an evaluation; null = as in a rollout"""
    eval_prompts: Positive
    """unseen prompts of an evaluation"""
    eval_steps: Positive
    """sampling steps of an evaluation"""
    eval_seeds: list[Seed] = Field(min_length=1)
    """one picture of every evaluated prompt from each"""
    checkpoint_every: Positive
    """epochs between checkpoints"""
    keep_checkpoints: Positive = 1
    """how many of the newest checkpoints are kept"""
    early_stop: EarlyStop | None = None
    seed: Seed
    """seed of everything that is drawn"""

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
