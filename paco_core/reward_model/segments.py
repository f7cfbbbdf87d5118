"""Attention of a Qwen2.5-VL's vision tower in one call a layer.

The tower attends within windows of a picture, and in four layers within whole pictures. transformers calls attention
once for each of these segments, 704 times for a picture of 512 px, and asks the GPU for their lengths in each layer: a
GPU waits for the launches, and the processor for the GPU. Here the segments of a layer are rows of one batch, the
shorter ones padded and masked, and the lengths are asked for once a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch.nn import functional
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision


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
