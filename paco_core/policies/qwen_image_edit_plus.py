"""Qwen-Image-Edit-Plus (2509, 2511) as a policy: a plain diffusers ``QwenImageEditPlusPipeline``.

As Qwen-Image-Edit, but the reader of instructions sees the reference at 384 x 384 pixels at most, marked "Picture 1:",
whatever size its latents have. 2511 differs in its transformer's configuration alone (``zero_cond_t``). The pipeline
takes several references; a policy changes one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from paco_core.policies.base import Size
from paco_core.policies.qwen_image_edit import NEGATIVE, QwenImageEditPolicy

if TYPE_CHECKING:
    from PIL.Image import Image

READ = 384  # side of a square of as many pixels as the reader sees at most; CONDITION_IMAGE_SIZE of diffusers


class QwenImageEditPlusPolicy(QwenImageEditPolicy):
    """Editing one reference with true guidance."""

    family = "qwen_image_edit_plus"

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:  # noqa: ARG002
        (height, width), (high, wide) = self.reference_of(size), self.read_size(self.reference_of(size))
        return f"""# The picture is brought to the sizes of training: what the reader sees, and what the latents are of.
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus

read, encoded = ({wide}, {high}), ({width}, {height})
plus.calculate_dimensions = lambda area, ratio: read if area == plus.CONDITION_IMAGE_SIZE else encoded
image = pipeline(
    prompt=prompt,
    image=picture,
    negative_prompt={NEGATIVE!r},
    true_cfg_scale={guidance:g},
    height={size[0]},
    width={size[1]},
    num_inference_steps={steps},
    generator=torch.Generator().manual_seed(0),
).images[0]"""

    def read_size(self, size: Size) -> Size:
        scale = min(1.0, READ / math.sqrt(size[0] * size[1])) / self.multiple
        return max(1, round(size[0] * scale)) * self.multiple, max(1, round(size[1] * scale)) * self.multiple

    def shown(self, picture: Image, size: Size) -> Any:
        return [super().shown(picture, size)]  # a list: the template marks each picture with its number
