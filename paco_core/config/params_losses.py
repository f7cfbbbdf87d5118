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
    """Weight in the loss of the KL divergence from the model without an adapter. If the weight is 0, paco does not
    compute this divergence."""
    form: Literal["exact", "paper"] = "exact"
    """Formula of the KL divergence: the exact one (`exact`), or that of the paper (`paper`), divided by the step's
    standard deviation."""
    where: Literal["everywhere", "disagreement"] = "everywhere"
    """Samples with a KL term: all (`everywhere`), or only samples that are above the mean of their group by the
    training reward but not by the held-out reward (`disagreement`)."""


class HackMeter(Section):
    """Detection of over-optimization: a training reward is compared with a held-out reward and with image metrics."""

    trained: str
    """Key of the reward term that trains the policy."""
    held_out: str
    """Key of the held-out reward term, which has weight 0: the same reward, computed with an independent model."""
    near_copy: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Root mean square pixel difference below which two panels, or an edit and its reference, are near-copies."""
    agreement: Annotated[float, Field(ge=-1, le=1)] = 0.7
    """Lower limit of the correlation between the two rewards over the images of a prompt. Below this limit, paco raises
    the alarm."""
    patience: Positive = 3
    """Number of last epochs over which paco averages the correlation."""


class EarlyStop(Section):
    """Conditions that end a training before its last epoch. Its outputs are those of a complete training."""

    reward_rise: FromZero = 0.05
    """Relative rise of the reward from which paco stops the training, if the panel diversity also falls below its
    limit."""
    diversity_kept: Fraction = 0.5
    """Limit of the panel diversity, as a share of the initial diversity. Below this limit, the policy has collapsed."""
    patience: Positive = 3
    """Number of last epochs that paco compares with the same number of first epochs."""
    hack_meter: bool = False
    """Also stop the training if `hack_meter` raises its alarm, or if the images lose content or become copies."""
    nan: Literal["error", "stop"] = "error"
    """Action if a gradient is not finite: stop with an error (`error`), or end the training early (`stop`)."""
