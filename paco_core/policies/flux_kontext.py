"""FLUX Kontext as a policy: a plain diffusers ``FluxKontextPipeline``, which changes a reference picture.

The reference's latents stand beside the noisy ones in every pass, at places of their own (first id 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from paco_core.io.pictures import picture_digest
from paco_core.policies.base import References, Size, sized
from paco_core.policies.encoded import Condition, Encoded
from paco_core.policies.encodings import Tensors
from paco_core.policies.flux import FluxPolicy

if TYPE_CHECKING:
    from PIL.Image import Image


class FluxKontextPolicy(FluxPolicy):
    """Editing with guidance embedding: one transformer pass a step, over picture and reference."""

    family = "flux_kontext"

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        height, width = self.reference_of(size)
        return f"""image = pipeline(
    prompt=prompt,
    image=pipeline.image_processor.resize(picture, {height}, {width}),  # as in training
    _auto_resize=False,  # else the pipeline brings it to about a million pixels
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
        pictures = [picture for picture, *_ in self.check_references(prompts, references, sizes)]
        texts = self._texts(prompts, max_sequence_length)
        both = zip(texts, self._references(pictures, sizes), strict=True)
        return Encoded([text | reference for text, reference in both], self.device)

    def _references(self, pictures: Sequence[Image], sizes: Sequence[Sequence[Size]]) -> list[Tensors]:
        """Packed latents (tokens, channels) of each picture, brought to its sizes."""
        processor, pipeline = self.pipeline.image_processor, self.pipeline
        names = [picture_digest(picture) for picture in pictures]

        def encode(row: int, size: Size) -> torch.Tensor:
            brought = self.reference_of(size)
            pixels = processor.preprocess(processor.resize(pictures[row], *brought), *brought)
            maps = pipeline._encode_vae_image(pixels.to(self.device, self.vae.dtype), generator=None)
            latents: torch.Tensor = pipeline._pack_latents(maps, *maps.shape)[0]
            return latents

        return self.at_sizes("reference", sizes, lambda row, s: ["reference", names[row], self.reference_of(s)], encode)

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        reference = condition.tensors[sized("reference", size)]
        places = self._ids(self.reference_of(size)).clone()
        places[..., 0] = 1
        tokens = torch.cat([latents.to(reference.dtype), reference], dim=1)
        ids = torch.cat([self._ids(size), places])
        return self._predict(tokens, sigma, condition, guidance, ids)[:, : latents.shape[1]]
