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
    """Train a reward model, or use a published `adapter` or `merged` model."""
    weights: ModelRef | None = None
    """Published model (hub ID, or folder in the layout of transformers or PEFT). `null` for the source `train`."""
    base: NetworkRef
    """Qwen2.5-VL model to train (hub ID, or folder in the layout of transformers)."""
    device: Device
    """Training device."""
    dtype: Literal["float32", "bfloat16"]
    """Weight format of the base model."""
    max_pixels: Area
    """Maximum pixels of a resized image."""
    min_pixels: Area
    """Minimum pixels of a resized image."""
    vision: Literal["frozen", "lora"] = "frozen"
    """Freeze the vision tower, or train it with LoRA."""
    vision_cache_gb: Annotated[FromZero, EXECUTION_ONLY] = 2.0
    """Cache for frozen vision features in GB."""
    lora: LoraParams
    swap: bool = False
    """Swap the images of every second pair whose order has no meaning."""
    answers: Literal["reasons", "decision"] = "reasons"
    """Training target: decision and reasons, or only the decision (the paper's Fast)."""
    loss: Literal["weighted", "legacy", "plain"]
    """Loss of the paper (`weighted`), its first release (`legacy`), or without weights (`plain`)."""
    alpha: Fraction
    """Loss weight of the decision (Yes or No). The reasons have the weight 1 - alpha."""
    average: Literal["example", "token"] = "example"
    """Average the loss per example, or per token as released."""
    label_newline: bool = False
    """Also train on the newline after the closing token, as released."""
    template: Literal["theme", "plain"]
    """Prompt template."""
    learning_rate: AboveZero
    """Peak learning rate of AdamW."""
    warmup_share: Fraction
    """Share of the steps for the learning rate warmup."""
    epochs: Positive
    """Passes over the training pairs."""
    batch_size: Positive
    """Pairs per forward pass."""
    accumulation: Positive
    """Forward passes per optimizer step."""
    max_grad_norm: AboveZero
    """Gradient clipping norm."""
    gradient_checkpointing: bool = False
    """Recompute layers in the backward pass to save memory."""
    best: Literal["roc_auc", "accuracy", "calibration_error", "position_spread", "last"] = "roc_auc"
    """Validation metric that selects the epoch."""
    checkpoint_every: Annotated[Positive, EXECUTION_ONLY] = 50
    """Optimizer steps between checkpoints."""
    processes: Annotated[Positive, EXECUTION_ONLY] = 1
    """Processes that share each batch."""
    seed: Seed
    """Seed of the adapter and the data order."""

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
    """Address that the server listens on."""
    port: Annotated[Port, EXECUTION_ONLY]
    """Port of the server. 0 selects a free port."""
    device: Device
    """Device."""
    dtype: Literal["float32", "bfloat16", "auto"]
    """Weight format."""
    threads: Annotated[Positive, EXECUTION_ONLY]
    """CPU threads of the server."""
    max_batch: Annotated[Positive, EXECUTION_ONLY]
    """Maximum queries per batch. Set it to half of `requests_in_flight`."""
    requests_in_flight: Annotated[Positive, EXECUTION_ONLY]
    """Maximum concurrent queries per client."""
    start_timeout_s: Annotated[Positive, EXECUTION_ONLY]
    """Timeout for the start of a server in seconds."""
    request_timeout_s: Annotated[Positive, EXECUTION_ONLY]
    """Timeout per query in seconds."""
    linger_s: Annotated[FromZero, EXECUTION_ONLY] = 0
    """Idle seconds before a server without clients stops."""
    max_failed_share: Annotated[Fraction, EXECUTION_ONLY]
    """Maximum share of samples without a score."""
    wait_for_server_s: Annotated[FromZero, EXECUTION_ONLY] = 0
    """Seconds that a client waits for a server that is down."""
    both_orders: bool = False
    """Average a pair's score over both image orders."""
    picture_format: Literal["png", "jpeg"] = "png"
    """Image format of the queries."""
    quantization: Literal["fp8", "bitsandbytes"] | None = None
    """Weight quantization on a GPU. `null` uses `dtype`."""
    score_cache: Annotated[str | None, EXECUTION_ONLY] = None
    """SQLite file that caches scores. `null` disables the cache."""
    gateway_port: Annotated[Port, EXECUTION_ONLY] = 0
    """Port of `paco serve gateway`. 0 selects a free port."""
    python: Annotated[str | None, EXECUTION_ONLY] = None
    """Python interpreter of the vLLM environment. `null` uses .venv-vllm."""
    tensor_parallel: Annotated[Positive, EXECUTION_ONLY] = 1
    """GPUs per server."""
    gpu_share: Annotated[Fraction, EXECUTION_ONLY] = 0.85
    """Share of GPU memory for vLLM."""
    max_model_len: Annotated[Positive, EXECUTION_ONLY] = 8192
    """Maximum tokens of a query with images and answer."""
    batch_invariant: Annotated[bool, EXECUTION_ONLY] = False
    """Make vLLM scores independent of the batch. This is slower."""

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
