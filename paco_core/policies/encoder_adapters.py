"""What adapters make of text encoders: a part of the key of encodings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from paco_core.io.files import digest


def adapters_on(encoders: Iterable[torch.nn.Module | None]) -> str:
    """Digest of the adapters that work in these modules at the moment; "" for none.

    Holds: of each layer its name, and of each adapter that is active on it, or merged into it, the scale and the
    tensors. Adapters that are disabled for the length of a block are left out, so that the base's encodings are found.
    """
    found = []
    for number, encoder in enumerate(encoders):
        for place, layer in encoder.named_modules() if encoder is not None else ():
            if isinstance(layer, BaseTunerLayer):
                active = [] if layer.disable_adapters else layer.active_adapters
                for adapter in sorted({*active, *layer.merged_adapters}):
                    found.append([number, place, getattr(layer, "scaling", {}).get(adapter), *_tensors(layer, adapter)])
    return digest(found, 32) if found else ""


def _tensors(layer: torch.nn.Module, adapter: str) -> list[str]:
    """Names and digests of an adapter's tensors on a layer."""
    named = {name: tensor for name, tensor in layer.named_parameters() if adapter in name.split(".")}
    return [
        f"{name} {hashlib.sha256(tensor.detach().float().cpu().numpy().tobytes()).hexdigest()}"
        for name, tensor in sorted(named.items())
    ]
