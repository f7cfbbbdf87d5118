"""Parameters of rounds: the stages of the graph again, with another policy and in another folder.

A policy can over-optimize its reward model. So a round generates images with the policy of the previous round, has them
ranked, trains a new reward model on all rankings so far, and continues the training of the policy with it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from paco_core.config.params_base import Fraction, Natural, Positive, Section

FIRST = "data"  # predecessor of the first round: the outputs of the graph
PLACE = f"{FIRST}/rounds"


class AskParams(Section):
    count: Positive | None = None
    """Number of rankings to annotate per round. `null` annotates all rankings."""
    choose: Literal["random", "uncertain", "disagree"] = "random"
    """Rule that selects the rankings to annotate: at random (`random`), P(Yes) nearest to 0.5 (`uncertain`), or largest
    difference from the held-out reward model (`disagree`)."""
    random_share: Fraction = 0.2
    """Share of the `count` rankings that paco selects at random, for an unbiased evaluation."""


class RoundParams(Section):
    after: Annotated[str, Field(pattern=r"^data(/rounds/[1-9]\d*)?$")]
    """Data from which the round starts: `data` (the graph), or `data/rounds/N` (an earlier round)."""
    annotations: Literal["recogniser", "people", "judge", "none"] | None = None
    """Annotator of the rankings of this round. `null` uses the value of `annotations.source`."""
    epochs: Natural | None = None
    """Training epochs of the policy in this round. `null` uses the value of the recipe."""


def _number(key: str) -> str:
    if not re.fullmatch(r"[1-9]\d*", key):
        raise ValueError(f"{key!r}: expected the number of a round, from 1 on, in quotes")
    return key


Items = dict[Annotated[str, AfterValidator(_number)], RoundParams]


class RoundsParams(Section):
    recipe: str = "flux_t2is"
    """Entry of `policies.recipes` that the rounds train. The recipe must generate sets."""
    ask: AskParams = Field(default_factory=AskParams)
    items: Items = Field(default_factory=dict)
    """Rounds by number. Each round follows an earlier one."""

    @field_validator("items")
    @classmethod
    def _each_follows_an_earlier_one(cls, items: Items) -> Items:
        earlier = [FIRST]
        for number, item in items.items():
            if item.after not in earlier:
                raise ValueError(f"{number}.after: {item.after!r} is no earlier round; there are: {', '.join(earlier)}")
            earlier.append(f"{PLACE}/{number}")
        return items
