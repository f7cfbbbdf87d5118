"""LoRA adapters on diffusers transformers: the one that is trained, copies of it, and what is written beside it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig

from paco_core.adapters.attach import attach as put_on
from paco_core.adapters.reader import Layers, Lora
from paco_core.io.files import DataError

if TYPE_CHECKING:
    from paco_core.config.params import LoraParams, PolicyLora


TRAINED = "default"  # peft's name for the adapter that is trained


def matching(linears: Sequence[str], target: str) -> list[str]:
    """Names of the linear layers that a LoRA target means: itself, or any layer it is the tail of."""
    return [name for name in linears if name == target or name.endswith(f".{target}")]


def attach(transformer: torch.nn.Module, lora: LoraParams | PolicyLora, targets: Sequence[str], seed: int) -> None:
    """Freeze ``transformer`` and attach a LoRA adapter (gaussian A, zero B), drawn from ``seed``.

    Raises:
        DataError: when a target matches no linear layer, naming the layers there are.
    """
    linears = [name for name, layer in transformer.named_modules() if isinstance(layer, torch.nn.Linear)]
    for target in targets:
        if not matching(linears, target):
            known = sorted({_tail(name) for name in linears})
            raise DataError(f"LoRA target {target!r} matches no linear layer; layers end in: {', '.join(known)}")
    transformer.requires_grad_(False)
    meant = _only_linear(transformer, linears, targets)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, init_lora_weights="gaussian", target_modules=meant)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer.add_adapter(config)
    _to_fp32(transformer)


def _only_linear(transformer: torch.nn.Module, linears: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Targets as PEFT takes them, which refuses one that is also the tail of a module of another kind.

    Such a one becomes the names of its linear layers: `attn.to_out` of FLUX.2, a list of modules in its double blocks.
    """
    others = [name for name, _ in transformer.named_modules() if name not in set(linears)]
    return [name for t in targets for name in (matching(linears, t) if matching(others, t) else [t])]


def _to_fp32(transformer: torch.nn.Module) -> None:
    """Trainable weights in fp32: half-precision ones cannot take small optimiser steps."""
    for parameter in transformer.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def train(transformer: torch.nn.Module, layers: Layers, scale: float) -> None:
    """Attach an adapter that was read from elsewhere as the one to train, and freeze everything else.

    Its B is divided so that ``alpha / rank`` is ``scale``: the learning rate of a recipe belongs to its scale.
    """
    transformer.requires_grad_(False)
    scaled = {
        name: Lora(lora.a, lora.b * (lora.alpha / lora.rank / scale), scale * lora.rank)
        for name, lora in layers.items()
    }
    put_on(transformer, scaled, TRAINED)
    for parameter in tensors(transformer, TRAINED).values():
        parameter.requires_grad_(True)


def tensors(transformer: torch.nn.Module, name: str) -> dict[str, torch.Tensor]:
    """The weights of one adapter, (rank, in) and (out, rank), under the names that they have in the trained one."""
    mark = f".{name}."
    return {
        key.replace(mark, f".{TRAINED}."): parameter
        for key, parameter in transformer.named_parameters()
        if mark in key and "lora_" in key
    }


def add_copy(transformer: torch.nn.Module, name: str) -> None:
    """Attach a frozen copy of the trained adapter; the trained one stays the active one."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # so it has: that is the trained one
        transformer.add_adapter(deepcopy(transformer.peft_config[TRAINED]), adapter_name=name)
    trained = tensors(transformer, TRAINED)
    for key, parameter in tensors(transformer, name).items():
        parameter.data = trained[key].detach().clone()
    _activate(transformer, TRAINED)


def _activate(transformer: torch.nn.Module, name: str) -> None:
    """Make an adapter the active one; only the trained one ever takes gradients."""
    transformer.set_adapter(name)
    for adapter in transformer.peft_config:
        for parameter in tensors(transformer, adapter).values():
            parameter.requires_grad_(adapter == TRAINED)


@contextmanager
def using(transformer: torch.nn.Module, name: str | None) -> Iterator[None]:
    """Predict with another adapter, or without any for ``None``; the trained one is active again afterwards."""
    if name is None:
        transformer.disable_adapters()
    else:
        _activate(transformer, name)
    try:
        yield
    finally:
        if name is None:
            transformer.enable_adapters()
        _activate(transformer, TRAINED)


@contextmanager
def rounded(transformer: torch.nn.Module) -> Iterator[None]:
    """Multiply by adapters in the transformer's own number format, for the length of a block without gradients.

    They are float32 beside bfloat16, so that products and what is between them take twice the memory and more. Weights
    that are held in shards stay as they are.
    """
    exact = {p: p.data for p in _weights(transformer) if not hasattr(p, "full_tensor")}
    dtype = transformer.dtype
    for parameter, data in exact.items():
        parameter.data = data.to(dtype)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for parameter, data in exact.items():
            parameter.data = data


def _weights(transformer: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for name, parameter in transformer.named_parameters() if "lora_" in name]


def _tail(name: str) -> str:
    """A layer's name without its place in a list of blocks: ``blocks.3.attn.to_out.0`` -> ``attn.to_out.0``."""
    parts = name.split(".")
    return ".".join(parts[2:]) if len(parts) > 2 and parts[1].isdigit() else name


def metadata(transformer: torch.nn.Module) -> dict[str, Any]:
    """The saved adapter's configuration, for the header of its file. Alpha is the rank, as B contains the scale."""
    config: dict[str, Any] = transformer.peft_config[TRAINED].to_dict()
    config |= {"lora_alpha": config["r"], "alpha_pattern": config["rank_pattern"]}
    return {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
