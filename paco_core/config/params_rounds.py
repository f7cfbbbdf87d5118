"""Parameters of rounds: the graph's stages once more, asked with another policy and in another place.

A judge is used up by the policy that it trained. So a round paints with the policy of the one before, has those
pictures ranked, trains a new judge on all rankings so far, and goes on training the policy against it.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from paco_core.config.params_base import Fraction, Natural, Positive, Section

FIRST = "data"  # what the first round follows: the outs of the graph itself
PLACE = f"{FIRST}/rounds"


class AskParams(Section):
    count: Positive | None = None
    """rankings of a round's own pictures that are asked for; null = all"""
    choose: Literal["random", "uncertain", "disagree"] = "random"
    """which: drawn; on which the judge before is nearest to P(Yes) = 0.5; or furthest from the held-out judge"""
    random_share: Fraction = 0.2
    """share of `count` that is drawn where the judge chooses, to examine it without the bias of its choice"""


class RoundParams(Section):
    after: Annotated[str, Field(pattern=r"^data(/rounds/[1-9]\d*)?$")]
    """what it follows: `data` (the graph itself), or `data/rounds/N` (an earlier round)"""
    annotations: Literal["recogniser", "people", "judge", "none"] | None = None
    """who ranks its pictures; null = as `annotations.source`"""
    epochs: Natural | None = None
    """rounds of sampling and learning; null = as the recipe says"""


def _number(key: str) -> str:
    if not re.fullmatch(r"[1-9]\d*", key):
        raise ValueError(f"{key!r}: expected the number of a round, from 1 on, in quotes")
    return key


Items = dict[Annotated[str, AfterValidator(_number)], RoundParams]


class RoundsParams(Section):
    recipe: str = "flux_t2is"
    """the entry of `policies.recipes` that rounds go on training; it must paint sets"""
    ask: AskParams = Field(default_factory=AskParams)
    items: Items = Field(default_factory=dict)
    """the rounds by number, each after the one that it follows; empty = none"""

    @field_validator("items")
    @classmethod
    def _each_follows_an_earlier_one(cls, items: Items) -> Items:
        earlier = [FIRST]
        for number, item in items.items():
            if item.after not in earlier:
                raise ValueError(f"{number}.after: {item.after!r} is no earlier round; there are: {', '.join(earlier)}")
            earlier.append(f"{PLACE}/{number}")
        return items
