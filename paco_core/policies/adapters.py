"""LoRA adapters on diffusers transformers: attach, check, save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paco_core.files import DataError

if TYPE_CHECKING:
    import torch

    from paco_core.params import LoraParams


def matching(linears: Sequence[str], target: str) -> list[str]:
    """Names of the linear layers that a LoRA target means: itself, or any layer it is the tail of."""
    return [name for name in linears if name == target or name.endswith(f".{target}")]


def attach(transformer: torch.nn.Module, lora: LoraParams, seed: int) -> None:
    """Freeze ``transformer`` and attach a LoRA adapter (gaussian A, zero B), drawn from ``seed``.

    Raises:
        DataError: when a target matches no linear layer, naming the layers there are.
    """
    import torch
    from peft import LoraConfig

    linears = [name for name, layer in transformer.named_modules() if isinstance(layer, torch.nn.Linear)]
    for target in lora.targets:
        if not matching(linears, target):
            known = sorted({_tail(name) for name in linears})
            raise DataError(f"LoRA target {target!r} matches no linear layer; layers end in: {', '.join(known)}")
    transformer.requires_grad_(False)
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, init_lora_weights="gaussian", target_modules=list(lora.targets)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer.add_adapter(config)
    for parameter in transformer.parameters():
        if parameter.requires_grad:  # half-precision weights cannot take small optimiser steps
            parameter.data = parameter.data.float()


def _tail(name: str) -> str:
    """A layer's name without its place in a list of blocks: ``blocks.3.attn.to_out.0`` -> ``attn.to_out.0``."""
    parts = name.split(".")
    return ".".join(parts[2:]) if len(parts) > 2 and parts[1].isdigit() else name


def metadata(transformer: torch.nn.Module) -> dict[str, Any]:
    """The adapter's configuration, kept beside its weights so that alpha survives loading."""
    config: dict[str, Any] = transformer.peft_config["default"].to_dict()
    return config
