"""Numbers of a policy's training that all recipes share, ``policies.defaults`` of ``params.yaml``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paco_core.config.execution import HOW
from paco_core.config.params_base import (
    DISTINCT,
    AboveZero,
    Device,
    Fraction,
    FromZero,
    Natural,
    PolicyLora,
    Positive,
    Section,
    Seed,
)
from paco_core.config.params_losses import OFFLINE, DpoParams, EarlyStop, HackMeter, KlParams, Loss, NftParams


class PolicyTraining(Section):
    """How a policy is trained, and on what: numbers that all recipes share, but for those that a recipe sets itself."""

    device: Device
    """where policies train"""
    dtype: Literal["float32", "mixed", "bfloat16"]
    """number format of the generator's weights; the adapter's are float32; mixed = float32, and pictures, but no
    trained step, in bfloat16 where the device computes it"""
    base: Literal["fp8", "nf4"] | None = None
    """number format in which the generator's transformer is kept on a GPU, its passes stay bfloat16; null = that of
    dtype"""
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
    dpo: DpoParams = DpoParams()
    kl: KlParams = KlParams()
    epochs: Natural
    """rounds of sampling and learning; 0 = only evaluate the start"""
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
    compile: bool = False
    """compile the transformer's blocks (torch.compile): fewer bytes moved between its products, another rounding"""
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
    eval_seeds: Annotated[list[Seed], Field(min_length=1), DISTINCT]
    """one picture of every evaluated prompt from each"""
    checkpoint_every: Annotated[Positive, HOW]
    """epochs between checkpoints"""
    keep_checkpoints: Annotated[Positive, HOW] = 1
    """how many of the newest checkpoints are kept"""
    hack_meter: HackMeter | None = None
    early_stop: EarlyStop | None = None
    seed: Seed
    """seed of everything that is drawn"""

    @model_validator(mode="after")
    def _even_updates(self) -> PolicyTraining:
        if self.prompts_per_epoch % self.updates_per_epoch:
            valid = [n for n in range(1, self.prompts_per_epoch + 1) if self.prompts_per_epoch % n == 0]
            raise ValueError(
                f"updates_per_epoch={self.updates_per_epoch} does not divide prompts_per_epoch="
                f"{self.prompts_per_epoch}; valid: {valid}"
            )
        return self

    @model_validator(mode="after")
    def _base_on_a_gpu(self) -> PolicyTraining:
        if self.base and (self.device == "cpu" or self.dtype != "bfloat16"):
            raise ValueError(
                f"base {self.base} is for a GPU and dtype bfloat16, and this is {self.device} and {self.dtype}; leave "
                "base null, or change them"
            )
        if self.base and self.compile:
            raise ValueError(f"compile: layers in {self.base} are not compiled; set it to false, or base to null")
        return self

    @model_validator(mode="after")
    def _log_prob_fits_the_loss(self) -> PolicyTraining:
        if self.forward and self.old_log_prob == "recomputed":
            raise ValueError(f"loss {self.loss} uses no log-probabilities: leave old_log_prob at 'rollout'")
        if self.offline and self.kl.beta > 0:
            raise ValueError(f"loss {self.loss} takes no KL: set kl.beta to 0 (dpo.beta is what holds dpo)")
        return self

    @property
    def offline(self) -> bool:
        """Whether the loss learns from pictures that were ranked before, without a rollout."""
        return self.loss in OFFLINE

    @property
    def forward(self) -> bool:
        """Whether the loss noises clean latents anew, and so needs no noisy step of a rollout."""
        return self.loss == "nft" or self.offline

    @property
    def pictures_an_epoch(self) -> int:
        """Pictures that are sampled, or ranked ones that are learnt from."""
        if self.offline:
            return self.prompts_per_epoch * self.pictures_a_pair
        return self.prompts_per_epoch * self.group_size

    @property
    def pictures_a_pair(self) -> int:
        """Pictures of a ranked pair that an offline loss looks at: the best, and for dpo the worst."""
        return 2 if self.loss == "dpo" else 1
