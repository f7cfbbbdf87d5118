"""Qwen-Image-Edit-Plus (2509, 2511) as a policy: a plain diffusers ``QwenImageEditPlusPipeline``.

As Qwen-Image-Edit, but the text encoder sees the reference at about 384 x 384 pixels, marked "Picture 1:", whatever
size its latents have. 2511 differs in its transformer's configuration alone (``zero_cond_t``: tokens of the reference
are modulated as at time 0). The pipeline takes several references, a policy exactly one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import CONDITION_IMAGE_SIZE, calculate_dimensions

from paco_core.policies.base import Size
from paco_core.policies.qwen_image_edit import NEGATIVE, QwenImageEditPolicy

if TYPE_CHECKING:
    from PIL.Image import Image


class QwenImageEditPlusPolicy(QwenImageEditPolicy):
    """Editing one reference with true guidance."""

    family = "qwen_image_edit_plus"

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:  # noqa: ARG002
        (height, width), (high, wide) = self.reference_of(size), self.condition_of(self.reference_of(size))
        return f"""# The picture is brought to the sizes of training: for the text encoder, and for the latents.
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus

seen, encoded = ({wide}, {high}), ({width}, {height})
plus.calculate_dimensions = lambda area, ratio: seen if area == plus.CONDITION_IMAGE_SIZE else encoded
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

    def condition_of(self, size: Size) -> Size:
        width, height = calculate_dimensions(CONDITION_IMAGE_SIZE, size[1] / size[0])
        return height, width

    def condition_picture(self, picture: Image, size: Size) -> Any:
        return [super().condition_picture(picture, size)]  # a list: the template gives each picture a number
