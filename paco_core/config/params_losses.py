"""Settings of losses, and when a training ends before its last epoch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paco_core.config.params_base import AboveZero, Fraction, FromZero, Positive, Section
from paco_core.config.registered import names_of, registered

#: Losses that learn from pictures which were ranked before, without a rollout.
OFFLINE = names_of("grpo/losses.py", "OFFLINE")
Loss = Annotated[str, registered("grpo/losses.py", "LOSSES", "nft", *OFFLINE)]


class NftParams(Section):
    """Loss nft (DiffusionNFT, arXiv 2509.16117), table of its schedules in its code."""

    mix: Annotated[float, Field(gt=0, le=1)] = 1.0
    """b of the loss nft, the share of the new velocity in the implicit policies"""
    decay: Literal["on_policy", "slow", "late"] = "slow"
    """how fast the adapter `old` follows"""


class DpoParams(Section):
    """Loss dpo (Diffusion-DPO, arXiv 2311.12908, equation 14, for flow matching)."""

    beta: AboveZero = 2000.0
    """beta of the loss dpo, how strongly the reference holds: large = few steps away from it"""


class KlParams(Section):
    """Distance to the policy without adapter. No reference pass is run at beta 0."""

    beta: FromZero = 0.0
    """weight of the distance to the model without adapter; 0 = no such pass"""
    form: Literal["exact", "paper"] = "exact"
    """exact, or divided by the step's deviation as in the paper"""
    where: Literal["everywhere", "disagreement"] = "everywhere"
    """all samples, or only those that the hack meter's training judge puts above the mean of their group and its
    held-out judge does not"""


class HackMeter(Section):
    """Two judges of one question, one that trains and one that only watches, and measures that no judge sees."""

    trained: str
    """term of the recipe's rewards that the policy is trained by"""
    held_out: str
    """term of weight 0, the same reward by a judge that trains nothing"""
    near_copy: Annotated[float, Field(ge=0, le=1)] = 0.05
    """root mean square pixel difference, 0 to 1, below which two panels, or edit and reference, are near-copies"""
    agreement: Annotated[float, Field(ge=-1, le=1)] = 0.7
    """correlation of the judges' scores of samples of one prompt below which the alarm is raised: they have parted"""
    patience: Positive = 3
    """last epochs over which agreement is averaged"""


class EarlyStop(Section):
    """When to end a training before its last epoch; the outs are those of a finished one."""

    reward_rise: FromZero = 0.05
    """rise of the weighted reward that a training must keep, as a share of its first epochs'"""
    diversity_kept: Fraction = 0.5
    """share of the first epochs' panel diversity below which a training ends"""
    patience: Positive = 3
    """epochs that both must hold; also how many first epochs are averaged"""
    hack_meter: bool = False
    """the alarm of the recipe's hack_meter ends a training, too"""
    nan: Literal["error", "stop"] = "error"
    """what a gradient that is not finite does"""
