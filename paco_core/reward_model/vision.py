"""Vision tower of a reward model: cached features of images, and its slow layers in fewer calls.

The tower of a Qwen2.5-VL attends within windows of an image, and in four layers within whole images. The tower of a
Qwen3-VL attends within whole images only. transformers calls attention once for each of these segments, in Qwen2.5-VL
704 times for an image of 512 px, and asks the GPU for their lengths in each layer: a GPU waits for the launches, and
the processor for the GPU. :func:`attend_in_one_call` makes the segments of a layer rows of one batch, the shorter ones
padded and masked, and asks for the lengths once per pass.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch.nn import functional
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

#: A Qwen2.5-VL-7B needs 19 MB for an image of 2 Mpx, and a Qwen3-VL-4B needs 42 MB: it has four levels of features.
DEFAULT_BYTES = 2 << 30


@dataclass(frozen=True)
class Visual:
    """Vision features of one image."""

    tokens: torch.Tensor  # (t * h * w / merge^2, width), see :mod:`paco_core.reward_model.architectures`
    grid: tuple[int, int, int]  # (t, h, w) in patches


class FeatureCache:
    """Cache of features by image key, limited in bytes.

    Features are in host memory, which is larger. Copying them is cheap compared with encoding.

    Args:
        limit: maximum number of bytes. 0 = no cache.
        evict: whether to evict the least recently used features. Training iterates over all images, so the least
            recently used features are needed next. There the first features stay.
    """

    def __init__(self, limit: int = DEFAULT_BYTES, *, evict: bool = True) -> None:
        self.limit, self.evict = limit, evict
        self.bytes = 0
        self._entries: OrderedDict[str, Visual] = OrderedDict()

    def get(self, key: str) -> Visual | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: str, visual: Visual) -> Visual:
        """Add features if they fit. Returns the cached copy."""
        size = visual.tokens.nbytes
        while self.evict and self._entries and self.bytes + size > self.limit:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= oldest.tokens.nbytes
        if self.bytes + size > self.limit:
            return visual
        # A separate copy: a slice would keep the whole batch that it was encoded with.
        copy = replace(visual, tokens=visual.tokens.detach().cpu().clone())
        self._entries[key] = copy
        self.bytes += size
        return copy

    def clear(self) -> None:
        """Remove all features, for example because the tower has changed."""
        self._entries.clear()
        self.bytes = 0


@dataclass(frozen=True)
class Segments:
    """Layout of the tokens of a pass with one row per segment.

    Attributes:
        token_ids: index of the token at each place, int64 (segments, longest). Padding has index 0.
        mask: which places contain a token, bool (segments, longest). None if all do.
        places: flat places of the tokens, segment by segment, int64 (tokens,). They are computed once, because a GPU
            would synchronize in each layer to count them.
    """

    token_ids: torch.Tensor
    mask: torch.Tensor | None
    places: torch.Tensor | None

    @classmethod
    def from_ends(cls, ends: torch.Tensor) -> Segments:
        """From the cumulative lengths of the segments, (segments + 1,). Synchronizes with the device once."""
        cumulated = ends.tolist()
        lengths = torch.tensor(cumulated).diff()
        places = torch.arange(int(lengths.max()))
        mask = places < lengths[:, None]
        token_ids = (torch.tensor(cumulated[:-1])[:, None] + places) * mask
        if bool(mask.all()):
            return cls(token_ids.to(ends.device), None, None)
        return cls(*(part.to(ends.device) for part in (token_ids, mask, mask.flatten().nonzero()[:, 0])))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention within the segments; all (tokens, heads, width)."""
        rows = [tensor[self.token_ids].transpose(1, 2) for tensor in (q, k, v)]
        mask = None if self.mask is None else self.mask[:, None, None, :]
        outputs = functional.scaled_dot_product_attention(*rows, attn_mask=mask, scale=scale).transpose(1, 2)
        flat = outputs.flatten(0, 1)
        return flat if self.places is None else flat[self.places]


class _SegmentAttention:
    """Replaces the forward of attention layers. The segments of a pass are computed once for all layers."""

    def __init__(self) -> None:
        self._cached: list[tuple[torch.Tensor, Segments]] = []

    def segments(self, ends: torch.Tensor) -> Segments:
        for cached_ends, segments in self._cached:
            if cached_ends is ends:
                return segments
        self._cached = [*self._cached[-1:], (ends, Segments.from_ends(ends))]  # windows, and complete images
        return self._cached[-1][1]

    def install(self, attention: Any) -> None:
        def forward(
            layer: Any, hidden_states: torch.Tensor, cu_seqlens: torch.Tensor, position_embeddings: Any, **_options: Any
        ) -> torch.Tensor:
            q, k, v = layer.qkv(hidden_states).unflatten(1, (3, layer.num_heads, -1)).unbind(1)
            q, k = apply_rotary_pos_emb_vision(q, k, *position_embeddings)
            attended = self.segments(cu_seqlens).attend(q, k, v, layer.scaling)
            projected: torch.Tensor = layer.proj(attended.flatten(1))
            return projected

        attention.forward = MethodType(forward, attention)


def attend_in_one_call(visual: Any) -> None:
    """Make each layer of a vision tower attend in one call."""
    attention = _SegmentAttention()
    for block in visual.blocks:
        attention.install(block.attn)


def embed_patches_by_product(embed: Any) -> None:
    """Replace the convolution of a vision tower's patch embedding by a matrix product.

    The convolution has one step per patch, so both compute the same sum. On a CPU, the product is five times faster.
    """
    embed.forward = MethodType(_product, embed)


def _product(embed: Any, patches: torch.Tensor) -> torch.Tensor:
    weight = embed.proj.weight.flatten(1)
    return functional.linear(patches.to(weight.dtype), weight, embed.proj.bias)
