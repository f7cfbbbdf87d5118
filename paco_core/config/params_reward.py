"""The sections ``reward`` and ``serving``: how the pairwise reward is trained, and how it is served."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator

from paco_core.config.execution import HOW
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
from paco_core.config.references import ModelRef


class RewardParams(Section):
    source: Literal["train", "adapter", "merged"] = "train"
    """train a reward, or take a published `adapter` or `merged` model"""
    weights: ModelRef | None = None
    """published adapter or merged model, a folder or hub id; null = trained here"""
    base: ModelRef
    """Qwen2.5-VL that is trained"""
    device: Device
    """where it trains"""
    dtype: Literal["float32", "bfloat16"]
    """number format of the base's weights; the adapter's are float32"""
    max_pixels: Area
    """pixels of a picture after resizing, at most"""
    min_pixels: Area
    """pixels of a picture after resizing, at least"""
    vision: Literal["frozen", "lora"] = "frozen"
    """whether the vision tower is trained, too"""
    vision_cache_gb: Annotated[FromZero, HOW] = 2.0
    """GB of features of a frozen tower that are kept in memory"""
    lora: LoraParams
    swap: bool = False
    """show half of the pairs in the other order, in turns, where the order has no meaning"""
    answers: Literal["reasons", "decision"] = "reasons"
    """what is learnt; reasons after the decision, or the decision alone (the paper's Fast)"""
    loss: Literal["weighted", "legacy", "plain"]
    """weighted answer loss of the paper, as first released, or without weights"""
    alpha: Fraction
    """share of the loss that the decision (Yes or No) holds; the reasons hold the rest"""
    average: Literal["example", "token"] = "example"
    """whether an answer counts once, or by its length as released"""
    label_newline: bool = False
    """learn the newline behind the closing token, too, as released"""
    template: Literal["theme", "plain"]
    """question that is asked"""
    learning_rate: AboveZero
    """peak learning rate of AdamW"""
    warmup_share: Fraction
    """share of the steps in which the rate rises"""
    epochs: Positive
    """passes over the training pairs"""
    batch_size: Positive
    """pairs of a forward pass"""
    accumulation: Positive
    """forward passes of an optimiser step"""
    max_grad_norm: AboveZero
    """norm that gradients are clipped to"""
    gradient_checkpointing: bool = False
    """compute layers again in the backward pass instead of keeping them"""
    best: Literal["roc_auc", "accuracy", "calibration_error", "position_spread", "last"] = "roc_auc"
    """validation figure by which the kept epoch is chosen"""
    checkpoint_every: Annotated[Positive, HOW] = 50
    """optimiser steps between checkpoints"""
    processes: Annotated[Positive, HOW] = 1
    """processes of this machine that share each batch"""
    seed: Seed
    """seed of adapter and order"""

    @model_validator(mode="after")
    def _weights_where_not_trained(self) -> RewardParams:
        if (self.source == "train") != (self.weights is None):
            raise ValueError("source 'adapter' or 'merged' needs weights, a folder or hub id; 'train' takes none")
        return self


class ServingParams(Section):
    engine: Literal["transformers", "vllm"]
    """what serves the reward model"""
    host: Annotated[str, HOW]
    """address that it listens on"""
    port: Annotated[Port, HOW]
    """its port; 0 = any free one"""
    device: Device
    """where it runs"""
    dtype: Literal["float32", "bfloat16", "auto"]
    """number format of its weights"""
    threads: Annotated[Positive, HOW]
    """its processor threads"""
    max_batch: Annotated[Positive, HOW]
    """questions computed at a time; half of those in flight, so that the next batch is read while one is answered"""
    requests_in_flight: Annotated[Positive, HOW]
    """questions that a client has on their way"""
    start_timeout_s: Annotated[Positive, HOW]
    """seconds until a server must answer"""
    request_timeout_s: Annotated[Positive, HOW]
    """seconds until a question must be answered"""
    linger_s: Annotated[FromZero, HOW] = 0
    """seconds that a server without users waits for the next one"""
    max_failed_share: Annotated[Fraction, HOW]
    """share of samples without a score that a training epoch, an evaluation or a benchmark accepts"""
    wait_for_server_s: Annotated[FromZero, HOW] = 0
    """seconds that a client pauses while its server is down; 0 = stop"""
    both_orders: bool = False
    """a pair's score is the mean over both orders of its pictures"""
    picture_format: Literal["png", "jpeg"] = "png"
    """how pictures travel"""
    quantization: Literal["fp8", "bitsandbytes"] | None = None
    """weights of the judge in eight or four bits on a GPU, by vLLM's names; null = as `dtype` says"""
    score_cache: Annotated[str | None, HOW] = None
    """SQLite file of known scores; null = none"""
    gateway_port: Annotated[Port, HOW] = 0
    """port of `paco serve gateway`; 0 = any free one"""
    python: Annotated[str | None, HOW] = None
    """interpreter of vLLM's own environment; null = .venv-vllm"""
    tensor_parallel: Annotated[Positive, HOW] = 1
    """GPUs of one server"""
    gpu_share: Annotated[Fraction, HOW] = 0.85
    """share of a GPU's memory that vLLM takes"""
    max_model_len: Annotated[Positive, HOW] = 8192
    """tokens of the longest question with its pictures and answer"""
    batch_invariant: Annotated[bool, HOW] = False
    """vLLM on a GPU gives scores that do not depend on what is scored beside them; slower"""

    @property
    def program(self) -> str:
        """What computes scores: the engine, and what changes them; equal scores are only expected of equal ones."""
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
