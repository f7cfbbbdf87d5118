"""Training parameters that all recipes share: ``policies.defaults`` of ``params.yaml``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paco_core.config.execution import EXECUTION_ONLY
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
    """Training parameters of a policy. A recipe can override each of them."""

    device: Device
    """Training device."""
    dtype: Literal["float32", "mixed", "bfloat16"]
    """Number format of the image generator's weights. The adapter is in float32. `mixed` trains in float32, and samples
    in bfloat16 if the device supports bfloat16."""
    base: Literal["fp8", "nf4"] | None = None
    """Quantization of the transformer on a GPU, with bfloat16 computation. `null` loads the transformer in the format
    `dtype`."""
    learning_rate: AboveZero
    """Learning rate of AdamW."""
    weight_decay: FromZero
    """Weight decay of AdamW."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """Optimizer: AdamW (`adamw`), or AdamW with 8-bit moments of bitsandbytes (`adamw_8bit`)."""
    max_grad_norm: AboveZero
    """Gradient clipping norm."""
    lora: PolicyLora
    loss: Loss
    """Training loss."""
    old_log_prob: Literal["rollout", "recomputed"] = "rollout"
    """Source of the old log-probabilities in the loss: the rollout (`rollout`), or an extra pass (`recomputed`)."""
    max_ratio_gap: AboveZero | None = None
    """Maximum |ratio - 1| before the first update of an epoch, where ratio is the new probability divided by the old
    one. `null` uses 3 x `clip_range`."""
    clip_range: AboveZero
    """Clip range of the probability ratio."""
    max_advantage: AboveZero
    """Clip range of the advantages."""
    nft: NftParams = NftParams()
    dpo: DpoParams = DpoParams()
    kl: KlParams = KlParams()
    epochs: Natural
    """Number of epochs of sampling and training. If the number is 0, paco only evaluates the initial policy."""
    prompts_per_epoch: Positive
    """Prompts per epoch."""
    group_size: Annotated[Positive, Field(ge=2)]
    """Images per prompt."""
    updates_per_epoch: Positive
    """Number of optimizer steps per epoch. `prompts_per_epoch` must be a multiple of this number."""
    rollout_batch: Positive
    """Number of images (or of stories) per sampling batch."""
    train_batch: Positive
    """Number of images (or of panels of stories) per forward and backward pass."""
    gradient_checkpointing: bool
    """Recompute the transformer blocks in the backward pass to save GPU memory."""
    compile: bool = False
    """Compile the transformer blocks with torch.compile. The compiled blocks round results differently."""
    ema_decay: Fraction
    """Decay of the averaged weights."""
    ema_every: Positive
    """Number of optimizer steps between two updates of the averaged weights."""
    eval_every: Positive
    """Epochs between evaluations."""
    eval_batch: Positive | None = None
    """Number of images per evaluation batch. `null` uses the value of `rollout_batch`."""
    eval_prompts: Positive
    """Held-out prompts per evaluation."""
    eval_steps: Positive
    """Sampling steps of an evaluation."""
    eval_seeds: Annotated[list[Seed], Field(min_length=1), DISTINCT]
    """Random seeds. paco generates one image per prompt and seed."""
    checkpoint_every: Annotated[Positive, EXECUTION_ONLY]
    """Epochs between checkpoints."""
    keep_checkpoints: Annotated[Positive, EXECUTION_ONLY] = 1
    """Checkpoints to keep."""
    hack_meter: HackMeter | None = None
    early_stop: EarlyStop | None = None
    seed: Seed
    """Seed of the training."""

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
        """Whether the loss trains on ranked images, without a rollout."""
        return self.loss in OFFLINE

    @property
    def forward(self) -> bool:
        """Whether the loss adds noise to clean latents, and needs no noise step of a rollout."""
        return self.loss == "nft" or self.offline

    @property
    def samples_per_epoch(self) -> int:
        """Number of images that an epoch samples or, with an offline loss, reads."""
        if self.offline:
            return self.prompts_per_epoch * self.pictures_a_pair
        return self.prompts_per_epoch * self.group_size

    @property
    def pictures_a_pair(self) -> int:
        """Number of images of a ranked pair that an offline loss uses: the best, and for dpo the worst."""
        return 2 if self.loss == "dpo" else 1
