"""FLUX Kontext as a policy: a plain diffusers ``FluxKontextPipeline``, which changes a reference picture.

The reference's latents stand beside the noisy ones in every pass, at places of their own (first id 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from paco_core.io.pictures import picture_digest
from paco_core.policies.base import Condition, Size, sized
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
        references: Sequence[Image] | None = None,
        sizes: Sequence[Size] = (),
    ) -> Condition:
        self.check_references(prompts, references, sizes)
        pictures = [picture.convert("RGB") for picture in references or ()]
        tensors = self._texts(prompts, max_sequence_length)
        for size in dict.fromkeys(sizes):
            tensors[sized("reference", size)] = self._references(pictures, self.reference_of(size))
        return Condition(tensors)

    def _references(self, pictures: Sequence[Image], size: Size) -> torch.Tensor:
        """Packed latents (N, tokens, channels) of pictures that were brought to ``size``."""
        processor, pipeline = self.pipeline.image_processor, self.pipeline

        def encode(row: int) -> Tensors:
            with torch.inference_mode():
                pixels = processor.preprocess(processor.resize(pictures[row], *size), *size)
                maps = pipeline._encode_vae_image(pixels.to(self.device, self.vae.dtype), generator=None)
                return {"latents": pipeline._pack_latents(maps, *maps.shape)[0]}

        found = self.encodings.rows([["reference", picture_digest(p), size] for p in pictures], encode)
        return torch.stack([row["latents"] for row in found]).to(self.device)

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        reference = condition.tensors[sized("reference", size)]
        places = self._ids(self.reference_of(size)).clone()
        places[..., 0] = 1
        tokens = torch.cat([latents.to(reference.dtype), reference], dim=1)
        ids = torch.cat([self._ids(size), places])
        return self._predict(tokens, sigma, condition, guidance, ids)[:, : latents.shape[1]]
