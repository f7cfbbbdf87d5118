"""FLUX as a policy: a diffusers ``FluxPipeline``, text to image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from paco_core.adapters.names import Vocabulary
from paco_core.models.tokens import note_texts, token_counts
from paco_core.policies.base import References, Size
from paco_core.policies.encoded import Condition, Encoded
from paco_core.policies.encodings import Tensors
from paco_core.policies.flux_names import flux_names
from paco_core.policies.pipeline_policy import PipelinePolicy
from paco_core.policies.truncation import find_truncation


class FluxPolicy(PipelinePolicy):
    """Text to image with guidance embedding: one transformer pass per step."""

    family = "flux"

    def __init__(self, pipeline: Any, device: str, **options: Any) -> None:
        super().__init__(pipeline, device, **options)
        self._image_ids: dict[Size, torch.Tensor] = {}
        self.vae.to(memory_format=torch.channels_last)  # reduces the time of convolutions by 25%

    def layer_vocabularies(self) -> Sequence[Vocabulary]:
        return (flux_names(self.transformer),)

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        return f"""image = pipeline(
    prompt,
    height={size[0]},
    width={size[1]},
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
        self.prepare_references(prompts, references, sizes)
        return Encoded(self._texts(prompts, max_sequence_length), self.device)

    def _texts(self, prompts: Sequence[str], max_sequence_length: int) -> list[Tensors]:
        """Embeddings of each prompt: T5 (L, d) and pooled CLIP (d,)."""
        clip, t5 = self.pipeline.tokenizer, self.pipeline.tokenizer_2
        self.record_truncations(prompts, lambda prompt: find_truncation(t5, prompt, max_sequence_length, closing=True))
        note_texts("summary", prompts, clip.model_max_length, partial(token_counts, clip))

        def encode(row: int) -> Tensors:
            self.validate_encoders()
            with torch.no_grad():
                prompt_embeds, pooled_prompt_embeds, _ = self.pipeline.encode_prompt(
                    prompt=[prompts[row]], prompt_2=None, device=self.device, max_sequence_length=max_sequence_length
                )
            return {"prompt_embeds": prompt_embeds[0], "pooled_prompt_embeds": pooled_prompt_embeds[0]}

        return self.cached([["text", prompt, max_sequence_length] for prompt in prompts], encode)

    def _ids(self, size: Size) -> torch.Tensor:
        if size not in self._image_ids:
            rows, columns = self.grid(size)
            self._image_ids[size] = self.pipeline._prepare_latent_image_ids(
                1, rows, columns, self.device, self.transformer.dtype
            )
        return self._image_ids[size]

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        return self._predict(latents, sigma, condition, guidance, self._ids(size))

    def _predict(
        self, tokens: torch.Tensor, sigma: float, condition: Condition, guidance: float, ids: torch.Tensor
    ) -> torch.Tensor:
        """One transformer pass over image tokens (N, L, C) with position ids (L, 3). Returns fp32."""
        dtype, count = self.transformer.dtype, len(tokens)
        prompt_embeds = condition.tensors["prompt_embeds"]
        guidance_input = None
        if self.transformer.config.guidance_embeds:
            guidance_input = torch.full((count,), guidance, device=self.device, dtype=torch.float32)
        velocity: torch.Tensor = self.transformer(
            hidden_states=tokens.to(dtype),
            timestep=torch.full((count,), sigma, device=self.device, dtype=torch.float32),
            guidance=guidance_input,
            pooled_projections=condition.tensors["pooled_prompt_embeds"],
            encoder_hidden_states=prompt_embeds,
            txt_ids=torch.zeros(prompt_embeds.shape[1], 3, device=self.device, dtype=dtype),
            img_ids=ids,
            return_dict=False,
        )[0]
        return velocity.float()

    def _maps(self, pixels: torch.Tensor) -> torch.Tensor:
        config, encoded = self.vae.config, self.vae.encode(pixels).latent_dist.mode()
        maps: torch.Tensor = (encoded - config.shift_factor) * config.scaling_factor
        return maps

    def _pixels(self, maps: torch.Tensor) -> torch.Tensor:
        config = self.vae.config
        scaled = (maps / config.scaling_factor + config.shift_factor).to(self.vae.dtype)
        pixels: torch.Tensor = self.vae.decode(scaled, return_dict=False)[0]
        return pixels
