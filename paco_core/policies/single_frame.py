"""Single-frame mode of Qwen-Image's video autoencoder: causal convolutions over time need only their last slice.

An image is a video of one frame. The frames before it are zeros, so two thirds of the products are zero, and 3D
convolutions are slow on CPUs. The result is equal up to rounding.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from torch.nn import functional

if TYPE_CHECKING:
    import torch


def use_single_frame_convolutions(vae: Any) -> None:
    """Make an ``AutoencoderKLQwenImage`` encode and decode single frames by 2D convolutions."""
    for module in vae.modules():
        if isinstance(module, QwenImageCausalConv3d):
            module.forward = MethodType(_forward, module)


def _forward(self: Any, x: torch.Tensor, cache_x: torch.Tensor | None = None) -> torch.Tensor:
    if cache_x is not None or x.shape[2] != 1:
        convolved: torch.Tensor = type(self).forward(self, x, cache_x)
        return convolved
    left, _, top, _, _, _ = self._padding
    weight = self.weight[:, :, -1]
    return functional.conv2d(x[:, :, 0], weight, self.bias, self.stride[1:], (top, left)).unsqueeze(2)
