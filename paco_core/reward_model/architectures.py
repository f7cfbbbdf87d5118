"""Architectures of reward models: the differences between Qwen2.5-VL and Qwen3-VL.

Both have the same names of parts and the same image processor. The vision tower of Qwen3-VL attends within whole images
only, so it has no ``window_size``. It also returns deepstack features: merged outputs of earlier vision layers. The
language model adds them to the states at image positions after its first layers (arXiv 2406.04334). Here, they follow
the image embeddings in one tensor, so they are cached and moved together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Architecture:
    """The code that depends on the model type.

    Attributes:
        model_class: name of the class in transformers.
        sizes: keys of ``vision_config`` that are not checked by the shape of a weight.
        features: from the output of ``get_image_features``: the features of each image, (tokens, width).
        language_inputs: from the features of all images (tokens, width), the embeddings of a batch (rows, length,
            hidden) and a mask of its image positions, bool (rows, length): inputs of the language model.
    """

    model_class: str
    sizes: tuple[str, ...]
    features: Callable[[Any], list[torch.Tensor]]
    language_inputs: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], dict[str, Any]]


def _with_deepstack(output: Any) -> list[torch.Tensor]:
    levels = zip(output.pooler_output, *output.deepstack_features, strict=True)
    return [torch.cat(features, dim=-1) for features in levels]


def _image_inputs(features: torch.Tensor, embeds: torch.Tensor, is_image: torch.Tensor) -> dict[str, Any]:
    return {"inputs_embeds": embeds.masked_scatter(is_image[..., None], features)}


def _deepstack_inputs(features: torch.Tensor, embeds: torch.Tensor, is_image: torch.Tensor) -> dict[str, Any]:
    image_embeds, *deepstack = features.split(embeds.shape[-1], dim=-1)
    inputs = _image_inputs(image_embeds, embeds, is_image)
    return {**inputs, "visual_pos_masks": is_image, "deepstack_visual_embeds": deepstack}


#: By ``model_type`` of config.json.
ARCHITECTURES = {
    "qwen2_5_vl": Architecture(
        "Qwen2_5_VLForConditionalGeneration", ("window_size",), lambda output: list(output.pooler_output), _image_inputs
    ),
    "qwen3_vl": Architecture("Qwen3VLForConditionalGeneration", (), _with_deepstack, _deepstack_inputs),
}
