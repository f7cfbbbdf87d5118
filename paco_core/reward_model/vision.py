"""Vision tower of a Qwen2.5-VL: cached features of images, and its slow layers in fewer calls.

The tower attends within windows of an image, and in four layers within whole images. transformers calls attention once
for each of these segments, 704 times for an image of 512 px, and asks the GPU for their lengths in each layer: a GPU
waits for the launches, and the processor for the GPU. :func:`attend_in_one_call` makes the segments of a layer rows of
one batch, the shorter ones padded and masked, and asks for the lengths once per pass.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch.nn import functional
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

DEFAULT_BYTES = 2 << 30  # a 7B model needs 19 MB for a picture of 2 Mpx


@dataclass(frozen=True)
class Visual:
    """Vision features of one picture."""

    tokens: torch.Tensor  # (t * h * w / merge^2, hidden)
    grid: tuple[int, int, int]  # (t, h, w) in patches


class FeatureCache:
    """Features by picture key, up to a number of bytes.

    They lie in host memory, for there is more of it and moving them costs little next to encoding.

    Args:
        limit: bytes kept at most; 0 keeps nothing.
        evict: make room by dropping what was used longest ago. Training goes round and round through all
            pictures, where the ones used longest ago are the next ones needed: there the first to come stay.
    """

    def __init__(self, limit: int = DEFAULT_BYTES, *, evict: bool = True) -> None:
        self.limit, self.evict = limit, evict
        self.bytes = 0
        self._kept: OrderedDict[str, Visual] = OrderedDict()

    def get(self, key: str) -> Visual | None:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def put(self, key: str, visual: Visual) -> Visual:
        """Keep new features where they fit; returns them as they are kept."""
        size = visual.tokens.nbytes
        while self.evict and self._kept and self.bytes + size > self.limit:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= oldest.tokens.nbytes
        if self.bytes + size > self.limit:
            return visual
        # A separate copy: a slice would keep the whole batch that it was encoded with.
        kept = replace(visual, tokens=visual.tokens.detach().cpu().clone())
        self._kept[key] = kept
        self.bytes += size
        return kept

    def clear(self) -> None:
        """Forget all (the tower has changed)."""
        self._kept.clear()
        self.bytes = 0


@dataclass(frozen=True)
class Segments:
    """Where the tokens of a pass lie when each segment is a row.

    Attributes:
        taken: number of the token at each place, int64 (segments, longest); padding takes token 0.
        real: which places hold a token, bool (segments, longest); None where all do.
        places: those of the tokens among all, one segment after another, int64 (tokens,): a GPU would be asked in each
            layer how many places are real.
    """

    taken: torch.Tensor
    real: torch.Tensor | None
    places: torch.Tensor | None

    @classmethod
    def from_ends(cls, ends: torch.Tensor) -> Segments:
        """From the cumulated lengths of the segments, (segments + 1,); waits for the device once."""
        cumulated = ends.tolist()
        lengths = torch.tensor(cumulated).diff()
        places = torch.arange(int(lengths.max()))
        real = places < lengths[:, None]
        taken = (torch.tensor(cumulated[:-1])[:, None] + places) * real
        if bool(real.all()):
            return cls(taken.to(ends.device), None, None)
        return cls(*(part.to(ends.device) for part in (taken, real, real.flatten().nonzero()[:, 0])))

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention within the segments; all (tokens, heads, width)."""
        rows = [tensor[self.taken].transpose(1, 2) for tensor in (q, k, v)]
        mask = None if self.real is None else self.real[:, None, None, :]
        found = functional.scaled_dot_product_attention(*rows, attn_mask=mask, scale=scale).transpose(1, 2)
        flat = found.flatten(0, 1)
        return flat if self.places is None else flat[self.places]


class _OneCall:
    """Replaces the layers' forward; the segments of a pass are worked out once for all its layers."""

    def __init__(self) -> None:
        self._known: list[tuple[torch.Tensor, Segments]] = []

    def segments(self, ends: torch.Tensor) -> Segments:
        for given, segments in self._known:
            if given is ends:
                return segments
        self._known = [*self._known[-1:], (ends, Segments.from_ends(ends))]  # windows, and whole pictures
        return self._known[-1][1]

    def install(self, attention: Any) -> None:
        def forward(
            layer: Any, hidden_states: torch.Tensor, cu_seqlens: torch.Tensor, position_embeddings: Any, **_given: Any
        ) -> torch.Tensor:
            q, k, v = layer.qkv(hidden_states).unflatten(1, (3, layer.num_heads, -1)).unbind(1)
            q, k = apply_rotary_pos_emb_vision(q, k, *position_embeddings)
            found = self.segments(cu_seqlens).attend(q, k, v, layer.scaling)
            projected: torch.Tensor = layer.proj(found.flatten(1))
            return projected

        attention.forward = MethodType(forward, attention)


def attend_in_one_call(visual: Any) -> None:
    """Have each layer of a vision tower attend in one call."""
    once = _OneCall()
    for block in visual.blocks:
        once.install(block.attn)


def embed_patches_by_product(embed: Any) -> None:
    """Have a vision tower's patch embedding multiply matrices instead of convolving.

    Its convolution takes one step a patch, so both are the same sum; the product takes a fifth of the time on a
    processor.
    """
    embed.forward = MethodType(_product, embed)


def _product(embed: Any, patches: torch.Tensor) -> torch.Tensor:
    weight = embed.proj.weight.flatten(1)
    return functional.linear(patches.to(weight.dtype), weight, embed.proj.bias)
