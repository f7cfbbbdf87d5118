"""LoRA adapters on diffusers transformers: the trained adapter, its copies, and its metadata."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig

from paco_core.adapters.attach import attach_layers
from paco_core.adapters.reader import Layers, Lora
from paco_core.io.files import DataError

if TYPE_CHECKING:
    from paco_core.config.params import LoraParams, PolicyLora


TRAINED = "default"  # peft's name for the adapter that is trained


def match_layers(linears: Sequence[str], target: str) -> list[str]:
    """Names of the linear layers that a LoRA target matches: the equal name, and names that end in ``.target``."""
    return [name for name in linears if name == target or name.endswith(f".{target}")]


def add_lora(transformer: torch.nn.Module, lora: LoraParams | PolicyLora, targets: Sequence[str], seed: int) -> None:
    """Freeze ``transformer`` and attach a new LoRA adapter (gaussian A, zero B).

    Args:
        lora: rank and alpha.
        targets: names of layers, or endings of names.
        seed: of the initial weights.

    Raises:
        DataError: if a target matches no linear layer. The error lists the layers.
    """
    linears = [name for name, layer in transformer.named_modules() if isinstance(layer, torch.nn.Linear)]
    for target in targets:
        if not match_layers(linears, target):
            tails = sorted({_tail(name) for name in linears})
            raise DataError(f"LoRA target {target!r} matches no linear layer; layers end in: {', '.join(tails)}")
    transformer.requires_grad_(False)
    target_modules = _only_linear(transformer, linears, targets)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, init_lora_weights="gaussian", target_modules=target_modules)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer.add_adapter(config)
    _to_fp32(transformer)


def _only_linear(transformer: torch.nn.Module, linears: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Targets in the form that PEFT accepts. It rejects a target that also matches a module that is not linear.

    Such a target is replaced by the names of its linear layers. For example, `attn.to_out` is a linear layer in the
    single blocks of FLUX.2, and a list of modules in the double blocks.
    """
    non_linear = [name for name, _ in transformer.named_modules() if name not in set(linears)]
    return [name for t in targets for name in (match_layers(linears, t) if match_layers(non_linear, t) else [t])]


def _to_fp32(transformer: torch.nn.Module) -> None:
    """Convert trainable weights to fp32, because small optimizer steps vanish in half precision."""
    for parameter in transformer.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def attach_trainable(transformer: torch.nn.Module, layers: Layers, scale: float) -> None:
    """Attach an adapter from a file as the trained adapter, and freeze everything else.

    Args:
        scale: ``alpha / rank`` of the training, because the learning rate of a recipe depends on it. B is divided
            accordingly.
    """
    transformer.requires_grad_(False)
    scaled = {
        name: Lora(lora.a, lora.b * (lora.alpha / lora.rank / scale), scale * lora.rank)
        for name, lora in layers.items()
    }
    attach_layers(transformer, scaled, TRAINED)
    for parameter in adapter_tensors(transformer, TRAINED).values():
        parameter.requires_grad_(True)


def adapter_tensors(transformer: torch.nn.Module, name: str) -> dict[str, torch.Tensor]:
    """The weights of an adapter, (rank, in) and (out, rank), by the names of the weights of the trained adapter."""
    infix = f".{name}."
    return {
        key.replace(infix, f".{TRAINED}."): parameter
        for key, parameter in transformer.named_parameters()
        if infix in key and "lora_" in key
    }


def add_copy(transformer: torch.nn.Module, name: str) -> None:
    """Attach a frozen copy of the trained adapter. The trained adapter stays active."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # the config of the trained adapter
        transformer.add_adapter(deepcopy(transformer.peft_config[TRAINED]), adapter_name=name)
    trained = adapter_tensors(transformer, TRAINED)
    for key, parameter in adapter_tensors(transformer, name).items():
        parameter.data = trained[key].detach().clone()
    _activate(transformer, TRAINED)


def _activate(transformer: torch.nn.Module, name: str) -> None:
    """Activate an adapter. Only the trained adapter has gradients."""
    transformer.set_adapter(name)
    for adapter in transformer.peft_config:
        for parameter in adapter_tensors(transformer, adapter).values():
            parameter.requires_grad_(adapter == TRAINED)


@contextmanager
def use_adapter(transformer: torch.nn.Module, name: str | None) -> Iterator[None]:
    """Context that predicts with another adapter, or without any for ``None``. The trained one is active afterwards."""
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
def round_adapters(transformer: torch.nn.Module) -> Iterator[None]:
    """Context without gradients in which adapters have the number format of the transformer.

    In training, adapters are float32 next to a bfloat16 transformer, which at least doubles the memory of activations.
    Sharded weights do not change.
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
    """Name of a layer without its index in a list of blocks: ``blocks.3.attn.to_out.0`` -> ``attn.to_out.0``."""
    parts = name.split(".")
    return ".".join(parts[2:]) if len(parts) > 2 and parts[1].isdigit() else name


def adapter_metadata(transformer: torch.nn.Module) -> dict[str, Any]:
    """The saved adapter's configuration, for the header of its file. Alpha is the rank, as B contains the scale."""
    config: dict[str, Any] = transformer.peft_config[TRAINED].to_dict()
    config |= {"lora_alpha": config["r"], "alpha_pattern": config["rank_pattern"]}
    return {name: sorted(value) if isinstance(value, set) else value for name, value in config.items()}
