"""Puts LoRA on the layers of a model, takes it off, and gives its tensors, by PEFT's classes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer

from paco_core.adapters.reader import Layers

#: What libraries put into the names of parameters of a model that they wrap.
WRAPPED = ("_checkpoint_wrapped_module.", "_fsdp_wrapped_module.", "_orig_mod.")


def settings_of(layers: Layers) -> LoraConfig:
    """PEFT's settings of an adapter: exactly these layers, with plain numbers."""
    ranks = {name: lora.rank for name, lora in layers.items()}
    alphas = {name: int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha for name, lora in layers.items()}
    rank, alpha = (Counter(numbers.values()).most_common(1)[0][0] for numbers in (ranks, alphas))
    return LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules="|".join(re.escape(name) for name in sorted(layers)),  # a list would mean ends of names
        rank_pattern={f"^{re.escape(name)}": value for name, value in ranks.items() if value != rank},
        alpha_pattern={f"^{re.escape(name)}": value for name, value in alphas.items() if value != alpha},
    )


def attach_layers(module: torch.nn.Module, layers: Layers, name: str) -> None:
    """Attach a frozen adapter to a model. It replaces an adapter of this name; see :func:`fill`.

    Args:
        module: a model of diffusers or transformers.
    """
    detach_layers(module, name)
    inject_adapter_in_model(settings_of(layers), module, adapter_name=name, low_cpu_mem_usage=True)
    fill(module, layers, name)
    module._hf_peft_config_loaded = True  # by which diffusers and transformers know that there is one


def fill(module: torch.nn.Module, layers: Layers, name: str) -> None:
    """Copy the tensors into the layers of an adapter that PEFT has attached, and freeze them.

    The tensors are float32 in models of any dtype, as in training. If they were rounded to bfloat16, the adapter would
    differ from the one that the last evaluation of its training measured.
    """
    attached = {place: layer for place, layer in hosts(module).items() if name in layer.lora_A}
    if attached.keys() != layers.keys():
        raise RuntimeError(f"PEFT attached other layers than asked for: {sorted(attached.keys() ^ layers.keys())[:3]}")
    for place, lora in layers.items():
        host = attached[place]
        weight = host.get_base_layer().weight
        for side, tensor in ((host.lora_A, lora.a), (host.lora_B, lora.b)):
            moved = tensor.to(weight.device, torch.float32)
            side[name].weight = torch.nn.Parameter(moved, requires_grad=False)
        host.set_adapter(name, inference_mode=True)
        if host.scaling[name] != lora.alpha / lora.rank:
            raise RuntimeError(f"PEFT scales {place} by {host.scaling[name]}, and not by {lora.alpha} / {lora.rank}")


def detach_layers(module: torch.nn.Module, name: str) -> None:
    """Remove the adapter of this name, if there is one."""
    if name not in getattr(module, "peft_config", {}):
        return
    for host in hosts(module).values():
        host.delete_adapter(name)
    del module.peft_config[name]  # type: ignore[union-attr, operator]
    if not module.peft_config:
        del module.peft_config  # else PEFT warns of several adapters when the next one is attached


def hosts(module: torch.nn.Module) -> dict[str, Any]:
    """The layers that have adapters, by their names in the model."""
    return {unwrapped(name): layer for name, layer in module.named_modules() if isinstance(layer, LoraLayer)}


@contextmanager
def adapters_disabled(module: torch.nn.Module) -> Iterator[None]:
    """Disable all adapters inside a ``with`` block."""
    layers = hosts(module).values()
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        module.requires_grad_(False)  # PEFT makes what it activates trainable
        for parameter in trained:
            parameter.requires_grad_(True)


def unwrapped(name: str) -> str:
    """The name of a parameter or layer without the parts that wrappers of its model add."""
    for wrapper in WRAPPED:
        name = name.replace(wrapper, "")
    return name


def adapter_state_dict(module: torch.nn.Module, name: str) -> dict[str, torch.Tensor]:
    """The tensors of the trained adapter by their names in files: A (rank, in), B (out, rank).

    Each B is multiplied by ``alpha / rank``: a file means the same to tools that do not read alpha from its header.
    PEFT selects tensors by the structure of the model, and does not find them below some wrappers.

    Raises:
        RuntimeError: when a trainable parameter is not the adapter's, is held in shards, or shares its name.
    """
    trained = {key: parameter for key, parameter in module.named_parameters() if parameter.requires_grad}
    mark = f".{name}."
    saved = {unwrapped(key).replace(mark, "."): p.detach() for key, p in trained.items() if mark in key}
    if not saved or len(saved) != len(trained):
        raise RuntimeError(f"{len(saved)} tensors would be saved of {len(trained)} that are trained")
    if sharded := [key for key, tensor in saved.items() if hasattr(tensor, "full_tensor")]:
        raise RuntimeError(f"{sharded[0]} is sharded, and only one shard would be saved")
    for place, layer in hosts(module).items():
        if (key := f"{place}.lora_B.weight") in saved:
            saved[key] = saved[key] * layer.scaling[name]
    return saved
