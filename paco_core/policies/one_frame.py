"""Qwen-Image's video autoencoder on pictures: its causal convolutions over time need only their last slice.

A picture is a video of one frame, and the frames before it are zeros: two thirds of the products are with zeros,
and a convolution over time is slow on processors. The result is the same up to rounding.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from torch.nn import functional

if TYPE_CHECKING:
    import torch


def one_frame(vae: Any) -> None:
    """Let an ``AutoencoderKLQwenImage`` encode and decode single frames by convolutions over the plane alone."""
    for module in vae.modules():
        if isinstance(module, QwenImageCausalConv3d):
            module.forward = MethodType(_forward, module)


def _forward(self: Any, x: torch.Tensor, cache_x: torch.Tensor | None = None) -> torch.Tensor:
    if cache_x is not None or x.shape[2] != 1:
        whole: torch.Tensor = type(self).forward(self, x, cache_x)
        return whole
    left, _, top, _, _, _ = self._padding
    weight = self.weight[:, :, -1]
    return functional.conv2d(x[:, :, 0], weight, self.bias, self.stride[1:], (top, left)).unsqueeze(2)
