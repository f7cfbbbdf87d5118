"""FLUX Kontext as a policy: a diffusers ``FluxKontextPipeline``, which edits a reference image.

In every pass, the latents of the reference follow the noisy latents, with separate position ids (first id 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from paco_core.io.pictures import picture_digest
from paco_core.policies.base import References, Size, sized_name
from paco_core.policies.encoded import Condition, Encoded
from paco_core.policies.encodings import Tensors, encode_at_sizes
from paco_core.policies.flux import FluxPolicy

if TYPE_CHECKING:
    from PIL.Image import Image


class FluxKontextPolicy(FluxPolicy):
    """Editing with guidance embedding: one transformer pass per step, over image and reference."""

    family = "flux_kontext"

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        height, width = self.reference_size_for(size)
        return f"""image = pipeline(
    prompt=prompt,
    image=pipeline.image_processor.resize(picture, {height}, {width}),  # as in training
    _auto_resize=False,  # otherwise the pipeline resizes it to about a million pixels
    height={size[0]},
    width={size[1]},
    max_area={size[0] * size[1]},
    num_inference_steps={steps},
    guidance_scale={guidance:g},
    max_sequence_length={max_sequence_length},
    generator=torch.Generator().manual_seed(0),
).images[0]"""

    def encode(
        self,
        prompts: Sequence[str],
        max_sequence_length: int,
        references: Sequence[References] | None = None,
        sizes: Sequence[Sequence[Size]] = (),
        *,
        guidance: float | None = None,  # noqa: ARG002
    ) -> Encoded:
        images = [image for image, *_ in self.prepare_references(prompts, references, sizes)]
        texts = self._texts(prompts, max_sequence_length)
        latents = self._references(images, sizes)
        return Encoded([text | reference for text, reference in zip(texts, latents, strict=True)], self.device)

    def _references(self, images: Sequence[Image], sizes: Sequence[Sequence[Size]]) -> list[Tensors]:
        """Packed latents (tokens, channels) of each image, resized for its sizes."""
        processor, pipeline = self.pipeline.image_processor, self.pipeline
        digests = [picture_digest(image) for image in images]

        def encode(row: int, size: Size) -> torch.Tensor:
            resized = self.reference_size_for(size)
            pixels = processor.preprocess(processor.resize(images[row], *resized), *resized)
            maps = pipeline._encode_vae_image(pixels.to(self.device, self.vae.dtype), generator=None)
            latents: torch.Tensor = pipeline._pack_latents(maps, *maps.shape)[0]
            return latents

        return encode_at_sizes(
            self.cached,
            "image_latents",
            sizes,
            lambda row, s: ["reference", digests[row], self.reference_size_for(s)],
            encode,
        )

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        reference = condition.tensors[sized_name("image_latents", size)]
        reference_ids = self._ids(self.reference_size_for(size)).clone()
        reference_ids[..., 0] = 1
        tokens = torch.cat([latents.to(reference.dtype), reference], dim=1)
        ids = torch.cat([self._ids(size), reference_ids])
        return self._predict(tokens, sigma, condition, guidance, ids)[:, : latents.shape[1]]
