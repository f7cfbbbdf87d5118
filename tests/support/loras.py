"""LoRA files of other tools: one adapter in many spellings, and what it adds to each layer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
FILE = "pytorch_lora_weights.safetensors"


def random_lora(sizes: Mapping[str, tuple[int, int]], rank: int | Mapping[str, int] = 4, seed: int = 1) -> Tensors:
    """A and B of each layer of the size (outputs, inputs), by ``<layer>.A`` and ``<layer>.B``."""
    draw, tensors = torch.Generator().manual_seed(seed), {}
    for layer, (out, into) in sizes.items():
        layer_rank = rank if isinstance(rank, int) else rank[layer]
        tensors[f"{layer}.A"] = torch.randn(layer_rank, into, generator=draw) * 0.3
        tensors[f"{layer}.B"] = torch.randn(out, layer_rank, generator=draw) * 0.3
    return tensors


def sizes_of(module: torch.nn.Module, *ends: str) -> dict[str, tuple[int, int]]:
    """The linear layers whose names end so, or all."""
    linear = {name: layer for name, layer in module.named_modules() if isinstance(layer, torch.nn.Linear)}
    return {name: tuple(layer.weight.shape) for name, layer in linear.items() if not ends or name.endswith(ends)}  # type: ignore[misc]


def spelled(tensors: Tensors, place: Callable[[str], str], a: str, b: str, alpha: float | None = None) -> Tensors:
    """The tensors by the names that a tool gives to them."""
    renamed = {}
    for key, tensor in tensors.items():
        layer, side = key.rsplit(".", 1)
        renamed[place(layer) + (a if side == "A" else b)] = tensor
        if alpha is not None:
            renamed[f"{place(layer)}.alpha"] = torch.tensor(alpha)
    return renamed


def peft(tensors: Tensors, prefix: str = "transformer.") -> Tensors:
    return spelled(tensors, lambda layer: prefix + layer, ".lora_A.weight", ".lora_B.weight")


def kohya(tensors: Tensors, alpha: float | None, prefix: str = "lora_unet_") -> Tensors:
    place = lambda layer: prefix + layer.replace(".", "_")  # noqa: E731
    return spelled(tensors, place, ".lora_down.weight", ".lora_up.weight", alpha)


def write(folder: Path, tensors: Tensors, name: str = FILE, metadata: dict[str, str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name, metadata)
    return folder


def added(module: torch.nn.Module, name: str = "default") -> dict[str, torch.Tensor]:
    """What the adapter of a model adds to the weight of each of its layers, as its forward pass computes it."""
    tensors = {}
    for layer, host in module.named_modules():
        if hasattr(host, "lora_A") and name in host.lora_A:
            lora: Any = host
            ones = torch.eye(lora.in_features)
            tensors[layer] = (lora.lora_B[name](lora.lora_A[name](ones)) * lora.scaling[name]).T.detach()
    return tensors


def original_names(tensors: Tensors, table: Mapping[str, tuple[str, ...]], sizes: Mapping[str, int]) -> Tensors:
    """The tensors by the names of Black Forest Labs, layers that are one there put together.

    Args:
        table: as :data:`paco_core.policies.flux_names.FLUX`.
        sizes: outputs of each layer of the model.
    """
    fused: Tensors = {}
    adapted = {key[:-2] for key in tensors}
    for original, layers in table.items():
        for block in range(8):
            names = [layer.format(block) for layer in layers]
            parts = [name for name in names if name in adapted]
            if not parts or "lora" in original:
                continue
            adapted -= set(parts)
            fused[f"{original.format(block)}.A"] = torch.cat([tensors[f"{name}.A"] for name in parts])
            ranks, rows = [len(tensors[f"{name}.A"]) for name in parts], sum(sizes[name] for name in names)
            b, top = torch.zeros(rows, sum(ranks)), 0
            for name in names:
                if name in parts:
                    left = sum(ranks[: parts.index(name)])
                    b[top : top + sizes[name], left : left + ranks[parts.index(name)]] = tensors[f"{name}.B"]
                top += sizes[name]
            fused[f"{original.format(block)}.B"] = b
    assert not adapted, sorted(adapted)
    return fused


def write_trainer_layouts(source: Path, folder: Path, sizes: Mapping[str, int]) -> dict[str, Path]:
    """One FLUX adapter as five trainers write it, by trainer; what each adds to a layer is equal.

    Args:
        source: safetensors file of diffusers, whose alpha is the rank.
        sizes: outputs of each layer of the model.
    """
    from paco_core.policies.flux_names import FLUX

    sides = {"lora_A.weight": "A", "lora_B.weight": "B"}
    tensors: Tensors = {}
    for key, tensor in load_file(source).items():
        layer, _, side = key.removeprefix("transformer.").partition(".lora_")
        tensors[f"{layer}.{sides[f'lora_{side}']}"] = tensor
    original = original_names(tensors, FLUX, sizes)
    rank = len(next(tensor for key, tensor in tensors.items() if key.endswith(".A")))
    diffusers = write(folder / "diffusers" / "checkpoint-500", peft(tensors))
    write(folder / "peft", peft(tensors, "base_model.model."), "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": sorted({k[:-2] for k in tensors})}
    (folder / "peft" / "adapter_config.json").write_text(json.dumps(config))
    write(folder, kohya(original, None), "kohya-000002.safetensors")
    write(folder, kohya(tensors, float(rank), "lora_transformer_"), "one-save-400-8-0.safetensors")
    write(folder, peft(original, "diffusion_model."), "aitoolkit_000001000.safetensors")
    return {
        "diffusers": diffusers, "PEFT": folder / "peft", "kohya": folder / "kohya-000002.safetensors",
        "OneTrainer": folder / "one-save-400-8-0.safetensors",
        "ai-toolkit": folder / "aitoolkit_000001000.safetensors",
    }  # fmt: skip
