"""Allocations of a training: what PyTorch would allocate, measured on tensors of the meta device.

They have shapes, number formats and lifetimes, and no contents: a pass runs without a GPU and without weights. Not
counted is what a GPU adds: rounding by the allocator, workspaces of kernels, CUDA's context.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paco_core.config.params import PolicyRecipe
from paco_core.planning.models import STORED_BYTES, ModelConfig
from paco_core.planning.passes import Pass, PassMemory
from paco_core.planning.random_models import add_trained_adapter, build_policy, random_prompt
from paco_core.policies.adapters import round_adapters


class MasksWithValues(TorchDispatchMode):
    """Masks in main memory select from tensors of the meta device.

    Some transformers read the values of a mask, for example to find the images in a sequence of tokens.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.where.self and any(value.is_meta for value in args[1:]):
            args = (args[0].to("meta"), *args[1:])
        return func(*args, **(kwargs or {}))


class Allocated(MasksWithValues):
    """Bytes of all tensors that are alive: ``now``, and ``peak`` since it was last set."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor)
        return out

    def count(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor of any shape, each once."""
        storage: Any = tensor.untyped_storage()
        if storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, storage._cdata)

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def _fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001
) -> torch.Tensor:
    """Attention that stores no products, as on a GPU; on the meta device PyTorch would choose one that does."""
    attention: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return attention


_META = torch.library.Library("aten", "IMPL")
_META.impl("scaled_dot_product_attention", _fused_attention, "AutogradMeta")


def measure(recipe: PolicyRecipe, config: ModelConfig, passes: Sequence[Pass]) -> PassMemory:
    """Build the recipe's image generator and run passes of it."""
    policy = add_trained_adapter(build_policy(recipe, config, "meta"), recipe)
    with Allocated() as allocated:
        for weight in (*_tensors(policy.transformer), *_tensors(policy.vae)):
            allocated.count(weight)
        adapter = list(policy.trainable().values())
        for weight in adapter:
            weight.grad = torch.empty_like(weight)
        peaks = {str(run): _peak(allocated, policy, recipe, config, run) / 1e9 for run in passes}
    weights = sum(weight.numel() for weight in adapter)
    return PassMemory(
        transformer_gb=(sum(tensor.nbytes for tensor in _tensors(policy.transformer)) - 4 * weights) / 1e9,
        vae_gb=sum(tensor.nbytes for tensor in _tensors(policy.vae)) / 1e9,
        spared_gb=_spared(policy.transformer, recipe.base) / 1e9,
        adapter_weights=weights,
        passes=peaks,
    )


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]


def _peak(allocated: Allocated, policy: Any, recipe: PolicyRecipe, config: ModelConfig, run: Pass) -> int:
    """Bytes that a pass allocates at its peak."""
    before, size, train = allocated.now, run.size, run.kind == "train"
    condition = random_prompt(policy, recipe, config, size, run.references).take([0] * run.batch)
    allocated.peak = allocated.now
    rows, columns = policy.grid(size)
    latents = torch.empty(run.batch, rows * columns, config.token_channels, device=policy.device)
    rounds = recipe.device.startswith("cuda") and recipe.dtype == "bfloat16" and not train
    rounding = round_adapters(policy.transformer) if rounds else nullcontext()
    with torch.set_grad_enabled(train), nullcontext() if train else policy.reuse(), rounding:
        velocity = policy.velocity(latents, 0.9, condition, recipe.guidance, size)
        if train:
            velocity.square().mean().backward()
        else:
            del velocity, condition
            part = policy.split_for_decoding(latents, size)[0]  # the other parts need as much
            policy._pixels(policy._unpacked(part, size))
    return allocated.peak - before


def _spared(transformer: torch.nn.Module, base: str | None) -> float:
    """Bytes that frozen layers of fewer bits spare, minus the copy in sixteen bits of the largest one."""
    if base is None:
        return 0.0
    layers = [m.weight for m in transformer.modules() if isinstance(m, torch.nn.Linear) and not m.weight.requires_grad]
    sizes = [weight.numel() for weight in layers]
    return sum(sizes) * (2 - STORED_BYTES[base]) - 2 * max(sizes)
