"""Vision features of pictures, kept so that a frozen tower sees each picture once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

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
        self.encoded = 0  # pictures that went through the tower, for tests and benchmarks
        self._kept: OrderedDict[str, Visual] = OrderedDict()

    def get(self, key: str) -> Visual | None:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def put(self, key: str, visual: Visual) -> Visual:
        """Keep new features where they fit; returns them as they are kept."""
        self.encoded += 1
        size = visual.tokens.nbytes
        while self.evict and self._kept and self.bytes + size > self.limit:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= oldest.tokens.nbytes
        if self.bytes + size > self.limit:
            return visual
        # A copy of its own: a slice would keep the whole batch that it was encoded with.
        kept = replace(visual, tokens=visual.tokens.detach().cpu().clone())
        self._kept[key] = kept
        self.bytes += size
        return kept

    def clear(self) -> None:
        """Forget all (the tower has changed)."""
        self._kept.clear()
        self.bytes = 0
