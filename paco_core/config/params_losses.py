"""Parameters of losses and of early stopping."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paco_core.config.params_base import AboveZero, Fraction, FromZero, Positive, Section
from paco_core.config.registered import names_of, registered

#: Losses that train on ranked images, without a rollout.
OFFLINE = names_of("grpo/losses.py", "OFFLINE")
Loss = Annotated[str, registered("grpo/losses.py", "LOSSES", "nft", *OFFLINE)]


class NftParams(Section):
    """Loss nft (DiffusionNFT, arXiv 2509.16117)."""

    mix: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Weight of the new velocity in the implicit policies (b in DiffusionNFT)."""
    decay: Literal["on_policy", "slow", "late"] = "slow"
    """Decay schedule of the adapter `old`."""


class DpoParams(Section):
    """Loss dpo (Diffusion-DPO, arXiv 2311.12908, equation 14, for flow matching)."""

    beta: AboveZero = 2000.0
    """Beta of the loss `dpo`. A larger value keeps the policy closer to the reference."""


class KlParams(Section):
    """KL divergence from the policy without an adapter. With beta 0 there is no reference pass."""

    beta: FromZero = 0.0
    """Weight of the KL divergence from the model without an adapter. 0 skips this pass."""
    form: Literal["exact", "paper"] = "exact"
    """`exact` KL divergence, or that of the `paper`: divided by the step's standard deviation."""
    where: Literal["everywhere", "disagreement"] = "everywhere"
    """Samples of the KL term: all, or only those above the group mean for the training reward but not the held-out
    one."""


class HackMeter(Section):
    """Detection of over-optimization: a training reward is compared with a held-out reward and with image metrics."""

    trained: str
    """Reward term that trains the policy."""
    held_out: str
    """Reward term of weight 0: the same reward from an independent model."""
    near_copy: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Root mean square pixel difference below which two panels, or an edit and its reference, are near-copies."""
    agreement: Annotated[float, Field(ge=-1, le=1)] = 0.7
    """Reward correlation within a prompt below which paco raises the alarm."""
    patience: Positive = 3
    """Epochs in the average correlation."""


class EarlyStop(Section):
    """Conditions that end a training before its last epoch. Its outputs are those of a complete training."""

    reward_rise: FromZero = 0.05
    """Relative rise of the reward that is suspicious if the diversity falls."""
    diversity_kept: Fraction = 0.5
    """Share of the initial panel diversity below which the policy has collapsed."""
    patience: Positive = 3
    """Number of last epochs to compare with as many first epochs."""
    hack_meter: bool = False
    """Also stop at the alarm of `hack_meter`."""
    nan: Literal["error", "stop"] = "error"
    """Action if a gradient is not finite."""
