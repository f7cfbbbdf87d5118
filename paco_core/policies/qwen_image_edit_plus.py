"""Qwen-Image-Edit-Plus (2509, 2511) as a policy: a diffusers ``QwenImageEditPlusPipeline``.

It differs from Qwen-Image-Edit by one to three references, each with its original proportions. The text encoder sees
each reference at about 384 x 384 pixels with a label ("Picture 1:"), independent of the size of its latents. The
latents of the references follow the noisy latents. 2511 differs only in the configuration of its transformer
(``zero_cond_t``: tokens of references are modulated as at time 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import CONDITION_IMAGE_SIZE, calculate_dimensions

from paco_core.policies.base import Size, sized_name
from paco_core.policies.encoded import Condition, group_by_shapes, mask_of, shapes_of, ungroup
from paco_core.policies.encodings import Cached, Tensors
from paco_core.policies.qwen_image_edit import NEGATIVE, QwenImageEditPolicy

if TYPE_CHECKING:
    from PIL.Image import Image

MIN_SIDE = 32  # pixels; for very long images, the rounding of the pipeline would return 0


class QwenImageEditPlusPolicy(QwenImageEditPolicy):
    """Editing one to three references with true guidance."""

    family = "qwen_image_edit_plus"

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:  # noqa: ARG002
        return f"""# Images are resized to as many pixels as in training; the default is a million.
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus

plus.VAE_IMAGE_SIZE = {self.reference_area(size)}
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

    def reference_area(self, size: Size) -> float:
        """Number of pixels to which a reference is resized, with its original proportions."""
        self.validate_size(size)
        return size[0] * size[1] if self.reference_size is None else self.reference_size**2

    def condition_size_of(self, image: Image, size: Size) -> Size:  # noqa: ARG002
        return resized(image, CONDITION_IMAGE_SIZE)

    def condition_images(self, images: Sequence[Image], size: Size) -> Any:
        """The references as a list. The template numbers them."""
        return [self.pipeline.image_processor.resize(image, *self.condition_size_of(image, size)) for image in images]

    def _references(
        self,
        images: Sequence[Sequence[Image]],
        digests: Sequence[Sequence[str]],
        sizes: Sequence[Sequence[Size]],
        cached: Cached | None = None,
    ) -> list[Tensors]:
        """Concatenated packed latents (tokens, channels) of the images of each prompt, and their shapes, by size.

        Args:
            cached: encodes inputs that are not in the cache. None = :meth:`cached`.
        """
        cases = [(row, size) for row, of_row in enumerate(sizes) for size in dict.fromkeys(of_row)]
        requests = [
            (digests[row][index], image, resized(image, self.reference_area(size)))
            for row, size in cases
            for index, image in enumerate(images[row])
        ]

        def encode(case: int) -> Tensors:
            with torch.no_grad():
                return {"tensor": self.latents_of(*requests[case][1:])}

        encoded = iter((cached or self.cached)([["reference", digest, shape] for digest, _, shape in requests], encode))
        shapes = iter(torch.tensor(self.grid(shape)) for _, _, shape in requests)
        rows: list[Tensors] = [{} for _ in sizes]
        for row, size in cases:
            if not images[row]:
                continue
            name = sized_name("image_latents", size)
            rows[row][name] = torch.cat([next(encoded)["tensor"] for _ in images[row]])
            rows[row][shapes_of(name)] = torch.stack([next(shapes) for _ in images[row]])
        return rows

    def _predict(
        self, latents: torch.Tensor, sigma: float, condition: Condition, name: str, size: Size
    ) -> torch.Tensor:
        """One transformer pass per group of reference shapes. Returns fp32."""
        reference, text = sized_name("image_latents", size), sized_name(name, size)
        prompt_tensors = {n: condition.tensors[n] for n in (text, mask_of(text)) if n in condition.tensors}
        groups, velocities = group_by_shapes(condition.tensors[shapes_of(reference)]), []
        for shapes, rows in groups.items():
            image_latents = condition.tensors[reference][rows, : sum(height * width for height, width in shapes)]
            tokens = torch.cat([latents[rows].to(image_latents.dtype), image_latents], dim=1)
            batch = Condition({n: tensor[rows] for n, tensor in prompt_tensors.items()})
            frames = [(1, *self.grid(size)), *((1, *shape) for shape in shapes)]
            velocities.append(self._pass(tokens, sigma, batch, text, frames)[:, : latents.shape[1]])
        return ungroup(velocities, groups.values())


def resized(image: Image, area: float) -> Size:
    """Height and width of an image that is resized to about ``area`` pixels, as the pipeline computes them."""
    width, height = calculate_dimensions(area, image.width / image.height)
    return max(MIN_SIDE, height), max(MIN_SIDE, width)
