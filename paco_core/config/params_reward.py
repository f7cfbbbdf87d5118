"""The sections ``reward`` and ``serving``: how the pairwise reward is trained, and how it is served."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator

from paco_core.config.execution import EXECUTION_ONLY
from paco_core.config.params_base import (
    AboveZero,
    Area,
    Device,
    Fraction,
    FromZero,
    LoraParams,
    Port,
    Positive,
    Section,
    Seed,
)
from paco_core.config.references import ModelRef, NetworkRef


class RewardParams(Section):
    source: Literal["train", "adapter", "merged"] = "train"
    """Train a reward model (`train`), or use a published LoRA adapter (`adapter`) or a published complete model
    (`merged`)."""
    weights: ModelRef | None = None
    """Published model (hub ID, or folder in the layout of transformers or PEFT). `null` for the source `train`."""
    base: NetworkRef
    """Qwen2.5-VL or Qwen3-VL model to train (hub ID, or folder in the layout of transformers)."""
    device: Device
    """Training device."""
    dtype: Literal["float32", "bfloat16"]
    """Weight format of the base model."""
    max_pixels: Area
    """Maximum number of pixels of an image. paco shrinks larger images."""
    min_pixels: Area
    """Minimum number of pixels of an image. paco enlarges smaller images."""
    vision: Literal["frozen", "lora"] = "frozen"
    """Freeze the vision tower of the reward model (`frozen`), or also train the vision tower with LoRA (`lora`)."""
    vision_cache_gb: Annotated[FromZero, EXECUTION_ONLY] = 2.0
    """Size in GB of the cache for the features of a frozen vision tower."""
    lora: LoraParams
    swap: bool = False
    """Swap the two images of every second pair. paco does not swap edits, because their order has a meaning."""
    answers: Literal["reasons", "decision"] = "reasons"
    """Training target: decision and reasons (`reasons`), or only the decision (`decision`, which the paper calls
    Fast)."""
    loss: Literal["weighted", "legacy", "plain"]
    """Training loss: with the paper's token weights (`weighted`), as in the first released code (`legacy`), or without
    token weights (`plain`)."""
    alpha: Fraction
    """Loss weight of the decision (Yes or No). The reasons have the weight 1 - alpha."""
    average: Literal["example", "token"] = "example"
    """Average the loss over examples (`example`), or over tokens (`token`), as the released code does."""
    label_newline: bool = False
    """Also train on the newline after the closing token, as the released code does."""
    template: Literal["theme", "plain"]
    """Prompt template."""
    learning_rate: AboveZero
    """Peak learning rate of AdamW."""
    warmup_share: Fraction
    """Share of the optimizer steps in which the learning rate warms up."""
    epochs: Positive
    """Passes over the training pairs."""
    batch_size: Positive
    """Pairs per forward pass."""
    accumulation: Positive
    """Forward passes per optimizer step."""
    max_grad_norm: AboveZero
    """Gradient clipping norm."""
    gradient_checkpointing: bool = False
    """Recompute the layers in the backward pass to save GPU memory."""
    best: Literal["roc_auc", "accuracy", "calibration_error", "position_spread", "last"] = "roc_auc"
    """Validation metric that selects the best epoch. `last` selects the last epoch."""
    checkpoint_every: Annotated[Positive, EXECUTION_ONLY] = 50
    """Optimizer steps between checkpoints."""
    processes: Annotated[Positive, EXECUTION_ONLY] = 1
    """Processes that share each batch."""
    seed: Seed
    """Random seed of the adapter's initial weights and of the order of the training pairs."""

    @property
    def model(self) -> str:
        """The model whose weights are served: the merged model, or the base of the adapter."""
        return str(self.weights) if self.source == "merged" else self.base

    @model_validator(mode="after")
    def _weights_where_not_trained(self) -> RewardParams:
        if (self.source == "train") != (self.weights is None):
            raise ValueError("source 'adapter' or 'merged' needs weights, a folder or hub id; 'train' takes none")
        return self


class ServingParams(Section):
    engine: Literal["transformers", "vllm"]
    """Engine of the reward server."""
    host: Annotated[str, EXECUTION_ONLY]
    """Network address on which the reward server listens."""
    port: Annotated[Port, EXECUTION_ONLY]
    """Port of the reward server. The value 0 selects a free port."""
    device: Device
    """Device."""
    dtype: Literal["float32", "bfloat16", "auto"]
    """Weight format."""
    threads: Annotated[Positive, EXECUTION_ONLY]
    """CPU threads of the server."""
    max_batch: Annotated[Positive, EXECUTION_ONLY]
    """Maximum number of queries that the server scores in one batch. Set this number to half of
    `requests_in_flight`."""
    requests_in_flight: Annotated[Positive, EXECUTION_ONLY]
    """Maximum concurrent queries per client."""
    start_timeout_s: Annotated[Positive, EXECUTION_ONLY]
    """Maximum time in seconds for the start of a reward server."""
    request_timeout_s: Annotated[Positive, EXECUTION_ONLY]
    """Timeout per query in seconds."""
    linger_s: Annotated[FromZero, EXECUTION_ONLY] = 0
    """Seconds after which a reward server without clients stops."""
    max_failed_share: Annotated[Fraction, EXECUTION_ONLY]
    """Maximum share of samples without a score. If more samples have no score, the stage stops."""
    wait_for_server_s: Annotated[FromZero, EXECUTION_ONLY] = 0
    """Seconds that a client waits for a server that is down."""
    both_orders: bool = False
    """Score each pair in both orders of its images, and use the mean score."""
    picture_format: Literal["png", "jpeg"] = "png"
    """Image format of the queries."""
    quantization: Literal["fp8", "bitsandbytes"] | None = None
    """Quantization of the reward model's weights on a GPU. `null` loads the weights in the format `dtype`."""
    score_cache: Annotated[str | None, EXECUTION_ONLY] = None
    """SQLite file that caches scores. `null` disables the cache."""
    gateway_port: Annotated[Port, EXECUTION_ONLY] = 0
    """Port of `paco serve gateway`. The value 0 selects a free port."""
    python: Annotated[str | None, EXECUTION_ONLY] = None
    """Python interpreter of the environment with vLLM. `null` uses the environment .venv-vllm."""
    tensor_parallel: Annotated[Positive, EXECUTION_ONLY] = 1
    """GPUs per server."""
    gpu_share: Annotated[Fraction, EXECUTION_ONLY] = 0.85
    """Share of GPU memory for vLLM."""
    max_model_len: Annotated[Positive, EXECUTION_ONLY] = 8192
    """Maximum number of tokens of a query, including its images and answer."""
    batch_invariant: Annotated[bool, EXECUTION_ONLY] = False
    """Make the scores of vLLM independent of the batch. vLLM is slower with this setting."""

    @property
    def program(self) -> str:
        """The engine and the settings that affect scores. Scores are comparable only for equal programs."""
        invariant = " batch-invariant" if self.batch_invariant else ""
        return f"{self.engine}{invariant}" + (f" {self.quantization}" if self.quantization else "")

    @model_validator(mode="after")
    def _quantised_on_a_gpu(self) -> ServingParams:
        if self.quantization and (self.device == "cpu" or self.dtype == "float32"):
            raise ValueError(
                f"quantization {self.quantization} is for a GPU and dtype bfloat16, and this is {self.device} and "
                f"{self.dtype}; leave quantization null, or change them"
            )
        if self.quantization and self.batch_invariant:
            raise ValueError(
                f"quantization {self.quantization} and batch_invariant exclude each other: vLLM's invariant kernels "
                "multiply by whole weights; leave one of them out"
            )
        return self
