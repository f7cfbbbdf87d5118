"""Rewards of a policy, in training and in evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from paco_core.config.measures import validate_term_names
from paco_core.config.params_base import AboveZero, ChatParams, Device, Natural, Number, Positive, Section
from paco_core.config.params_losses import HackMeter
from paco_core.config.references import ModelRef
from paco_core.config.registered import FUNCTION, names_of, registered
from paco_core.io.messages import did_you_mean
from paco_core.io.text import validate_marks

REMOVED_AGGREGATORS = {"win_rate": "removed in 0.3; rank also ignores how much scores differ, within each group"}
Aggregator = Annotated[
    str, registered("rewards/aggregation.py", "AGGREGATORS", functions=True, removed=REMOVED_AGGREGATORS)
]


class HttpScorer(Section):
    """A scorer behind an address. The API key is only in the environment."""

    url: Annotated[str, Field(pattern=r"^https?://[^@\s]+$")]
    """URL of the scoring service, which receives batches of images."""
    model: str
    """Name and version of the scoring service. paco caches scores under this name."""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] | None = None
    """Environment variable with the API key. `null` sends no key."""
    timeout_s: Positive = 120
    """Timeout per request in seconds."""
    retries: Natural = 4
    """Number of retries of a failed request (status 429 or 5xx, or dropped connection)."""
    budget_s: AboveZero = 600
    """Maximum time in seconds for a batch of images, including retries and pauses."""

    @property
    def address(self) -> str:
        return self.url

    @property
    def key_variable(self) -> str | None:
        return self.api_key_env


class Rubric(Section):
    """Criteria by which a vision-language model scores images."""

    endpoint: ChatParams
    """Vision-language model that evaluates the criteria."""
    criteria: dict[str, Annotated[str, AfterValidator(validate_marks)]] = Field(min_length=1)
    """Name and description of each criterion."""

    @property
    def address(self) -> str:
        return self.endpoint.base_url

    @property
    def key_variable(self) -> str | None:
        return self.endpoint.api_key_env


class RewardTerm(Section):
    weight: Number
    """Weight of the reward. If the weight is 0, paco measures the reward, but does not train on it."""
    reward: str | None = None
    """Name of a built-in reward, or your own `module:function`. `null` uses the key of the term as the name of the
    reward."""
    model: ModelRef | None = None
    """Model of the reward."""
    device: Device = "cpu"
    """Device of this model."""
    theme_from: Literal["theme", "opening"] = "theme"
    """Text in the query of the reward model: the record's theme (`theme`), or its prompt up to the first panel
    (`opening`)."""
    pairs: Literal["all", "neighbours"] | Positive = "all"
    """Panel pairs that the reward `consistency` compares: all pairs (`all`), only panels that share an edge
    (`neighbours`), or a random sample of this many pairs (a number)."""
    aggregate: Literal["mean", "worst"] = "mean"
    """Statistic of the scores of the panel pairs in `consistency`: mean (`mean`) or lowest score (`worst`)."""
    http: HttpScorer | None = None
    """Server of the reward `http`."""
    rubric: Rubric | None = None
    """Criteria and model of the reward `rubric`."""


class RewardSet(Section):
    terms: dict[str, RewardTerm] = Field(min_length=1)
    aggregator: Aggregator
    """Rule that combines the rewards of an image into one advantage."""
    tame_delta: AboveZero | Literal["mean", "median"] = 0.2
    """Limit of a reward's standard deviation divided by its mean, above which `log_tame` dampens the reward: a number,
    or the `mean` or `median` over the rewards."""
    advantage_std: Literal["group", "global"]
    """Standard deviation by which paco divides the advantages: of each group (`group`), or of all samples
    (`global`)."""

    @model_validator(mode="after")
    def _something_is_rewarded(self) -> RewardSet:
        if all(term.weight == 0 for term in self.terms.values()):
            raise ValueError("every reward has weight 0; nothing would be learnt")
        return self


def validate_reward_names(rewards: RewardSet, key: str) -> None:
    """Check that every reward is registered or ``module:function``, and that its name is not that of another metric.

    Args:
        key: key of the rewards in ``policies.recipes``, for the message.

    Raises:
        ValueError: with the key and the nearest reward, or the term.
    """
    names = names_of("rewards/registry.py", "REWARDS")
    validate_term_names(rewards.terms, key)
    for name, term in rewards.terms.items():
        reward = term.reward or name
        if name in names and term.reward not in (name, None):
            raise ValueError(
                f"{key}: the term {name!r} has the name of a registered reward, but its reward is {term.reward}; "
                "choose another name for it"
            )
        if reward not in names and not FUNCTION.fullmatch(reward):
            module, dot, function = reward.rpartition(".")
            hint = f"did you mean '{module}:{function}'? " if dot else did_you_mean(reward, names)
            raise ValueError(
                f"{key}: reward {reward!r} is unknown; {hint}choose among {', '.join(names)}, or name module:function"
            )


def validate_hack_meter(meter: HackMeter, sets: Mapping[str, RewardSet]) -> None:
    """Check that both rewards of a hack meter are terms of every set, and that the held-out one has weight 0.

    Raises:
        ValueError: with the term and its weight.
    """
    judges = (meter.trained, meter.held_out)
    for key, rewards in sets.items():
        if missing := [name for name in judges if name not in rewards.terms]:
            raise ValueError(f"hack_meter: {missing[0]!r} is no term of {key}; there are {', '.join(rewards.terms)}")
    trained, held_out = (sets["rewards"].terms[name].weight for name in judges)
    if trained == 0 or held_out != 0:
        raise ValueError(
            f"hack_meter: a reward that trains ({meter.trained}: weight {trained:g}) is compared with one of weight 0 "
            f"({meter.held_out}: weight {held_out:g})"
        )
