"""What a policy is rewarded for, in training and in evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from paco_core.config.measures import validate_term_names
from paco_core.config.params_base import AboveZero, ChatParams, Device, Natural, Number, Positive, Section
from paco_core.config.params_losses import HackMeter
from paco_core.config.references import ModelRef
from paco_core.config.registered import FUNCTION, names_of, registered
from paco_core.io.messages import meant
from paco_core.io.text import validate_marks

REMOVED_AGGREGATORS = {"win_rate": "removed in 0.3; rank also ignores how much scores differ, within each group"}
Aggregator = Annotated[
    str, registered("rewards/aggregation.py", "AGGREGATORS", functions=True, removed=REMOVED_AGGREGATORS)
]


class HttpScorer(Section):
    """A scorer behind an address. The key itself stands in the environment only."""

    url: Annotated[str, Field(pattern=r"^https?://[^@\s]+$")]
    """where a batch of pictures is posted to"""
    model: str
    """name and version of what scores there; its scores are kept under this name"""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] | None = None
    """name of the environment variable that holds the key; null = no key is sent"""
    timeout_s: Positive = 120
    """seconds until one request must be answered"""
    retries: Natural = 4
    """repetitions of a request that was not served (429, 5xx, dropped connections)"""
    budget_s: AboveZero = 600
    """seconds that a batch may take, with all repetitions and pauses"""

    @property
    def address(self) -> str:
        return self.url

    @property
    def key_variable(self) -> str | None:
        return self.api_key_env


class Rubric(Section):
    """Criteria by which a vision language model marks pictures."""

    endpoint: ChatParams
    """model that is asked"""
    criteria: dict[str, Annotated[str, AfterValidator(validate_marks)]] = Field(min_length=1)
    """name of each criterion and, in your own words, when it is met"""

    @property
    def address(self) -> str:
        return self.endpoint.base_url

    @property
    def key_variable(self) -> str | None:
        return self.endpoint.api_key_env


class RewardTerm(Section):
    weight: Number
    """weight of the reward; 0 = only measured"""
    reward: str | None = None
    """registered name or `module:function`; null = the term's own name"""
    model: ModelRef | None = None
    """model that the reward uses"""
    device: Device = "cpu"
    """where that model runs"""
    theme_from: Literal["theme", "opening"] = "theme"
    """what the question quotes; the record's theme, or its prompt's opening"""
    pairs: Literal["all", "neighbours"] | Positive = "all"
    """panels of a set that `consistency` compares; `neighbours` share an edge, a number = so many pairs of a prompt,
    drawn anew each epoch"""
    aggregate: Literal["mean", "worst"] = "mean"
    """what `consistency` makes of its pairs"""
    http: HttpScorer | None = None
    """whom the reward `http` asks"""
    rubric: Rubric | None = None
    """what the reward `rubric` asks, and whom"""


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


def refuse_unknown(rewards: RewardSet, key: str) -> None:
    """Every reward is registered, or names a function of the user's own; and no term has the name of another measure.

    Raises:
        ValueError: naming the key and the nearest reward, or the term.
    """
    names = names_of("rewards/registry.py", "REWARDS")
    validate_term_names(rewards.terms, key)
    for name, term in rewards.terms.items():
        asked = term.reward or name
        if name in names and term.reward not in (name, None):
            raise ValueError(
                f"{key}: the term {name!r} has the name of a registered reward, but its reward is {term.reward}; "
                "choose another name for it"
            )
        if asked not in names and not FUNCTION.fullmatch(asked):
            module, dot, function = asked.rpartition(".")
            hint = f"did you mean '{module}:{function}'? " if dot else meant(asked, names)
            raise ValueError(
                f"{key}: reward {asked!r} is unknown; {hint}choose among {', '.join(names)}, or name module:function"
            )


def refuse_judges(meter: HackMeter, sets: Mapping[str, RewardSet]) -> None:
    """The judges of a hack meter are terms of every set that is asked, and one of them trains nothing.

    Raises:
        ValueError: naming the term, and what its weight is.
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
