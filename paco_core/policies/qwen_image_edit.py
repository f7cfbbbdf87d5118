"""Qwen-Image-Edit as a policy: a diffusers ``QwenImageEditPipeline``, which edits a reference image.

Qwen2.5-VL reads the instruction and the reference together. The latents of the reference follow the noisy latents.
Guidance is classifier-free guidance against an empty instruction. As in the pipeline, each token is then rescaled to
the norm that it has without guidance.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from paco_core.io.pictures import picture_digest
from paco_core.policies.base import References, Size, sized_name
from paco_core.policies.encoded import Condition, Encoded, mask_of
from paco_core.policies.encodings import Tensors, encode_at_sizes
from paco_core.policies.pipeline_policy import PipelinePolicy
from paco_core.policies.single_frame import use_single_frame_convolutions
from paco_core.policies.truncation import Truncation, find_truncation, truncate_prompt

if TYPE_CHECKING:
    from PIL.Image import Image

NEGATIVE = " "  # negative prompt of the authors' example


class QwenImageEditPolicy(PipelinePolicy):
    """Editing with true guidance: two transformer passes per step if ``guidance`` is above 1, else one."""

    family = "qwen_image_edit"

    def __init__(self, pipeline: Any, device: str, **options: Any) -> None:
        super().__init__(pipeline, device, **options)
        use_single_frame_convolutions(self.vae)

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:  # noqa: ARG002
        height, width = self.reference_size_for(size)
        return f"""# The image is resized as in training; by default, the pipeline resizes it to a million pixels.
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit

pipeline_qwenimage_edit.calculate_dimensions = lambda area, ratio: ({width}, {height}, None)
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

    def encode(
        self,
        prompts: Sequence[str],
        max_sequence_length: int,
        references: Sequence[References] | None = None,
        sizes: Sequence[Sequence[Size]] = (),
        *,
        guidance: float | None = None,
    ) -> Encoded:
        images = self.prepare_references(prompts, references, sizes)
        digests = [[picture_digest(image) for image in row] for row in images]
        instructions = self._truncated(self.pipeline.tokenizer, prompts, max_sequence_length)
        parts = [self._references(images, digests, sizes)]
        parts.append(self._texts("prompt_embeds", instructions, images, digests, sizes))
        if guidance is None or self.family_spec.passes_per_step(guidance) > 1:
            parts.append(self._texts("negative_prompt_embeds", [NEGATIVE] * len(images), images, digests, sizes))
        return Encoded([dict(ChainMap(*row)) for row in zip(*parts, strict=True)], self.device)

    def condition_size_of(self, image: Image, size: Size) -> Size:  # noqa: ARG002
        """Height and width at which the text encoder sees a reference, for a generated image of ``size``."""
        return self.reference_size_for(size)

    def condition_images(self, images: Sequence[Image], size: Size) -> Any:
        """The references in the format of the pipeline's ``encode_prompt``."""
        return self.pipeline.image_processor.resize(images[0], *self.condition_size_of(images[0], size))

    def latents_of(self, image: Image, size: Size) -> torch.Tensor:
        """Packed latents (tokens, channels) of a reference that is resized to ``size``."""
        processor = self.pipeline.image_processor
        pixels = processor.preprocess(processor.resize(image, *size), *size)
        return self._packed(self._maps(pixels.to(self.device, self.vae.dtype)))[0]

    def _truncated(self, tokenizer: Any, prompts: Sequence[str], length: int) -> list[str]:
        """The beginning of each prompt, of at most ``length`` tokens. Records the truncations."""
        texts = {prompt: truncate_prompt(tokenizer, prompt, length) for prompt in prompts}

        def find(prompt: str) -> Truncation | None:
            truncation = find_truncation(tokenizer, prompt, length, closing=False)
            return None if truncation is None else replace(truncation, lost=prompt[len(texts[prompt]) :].strip())

        self.record_truncations(prompts, find)
        return [texts[prompt] for prompt in prompts]

    def _texts(
        self,
        name: str,
        texts: Sequence[str],
        images: Sequence[Sequence[Image]],
        digests: Sequence[Sequence[str]],
        sizes: Sequence[Sequence[Size]],
    ) -> list[Tensors]:
        """Embeddings of each prompt's text and images by Qwen2.5-VL (tokens, d)."""

        def key(row: int, size: Size) -> object:
            return ["text", texts[row], digests[row], [self.condition_size_of(image, size) for image in images[row]]]

        def encode(row: int, size: Size) -> torch.Tensor:
            self.validate_encoders()
            embeds, _ = self.pipeline.encode_prompt(
                prompt=[texts[row]], image=self.condition_images(images[row], size), device=self.device
            )
            prompt_embeds: torch.Tensor = embeds[0]
            return prompt_embeds

        return encode_at_sizes(self.cached, name, sizes, key, encode)

    def _references(
        self, images: Sequence[Sequence[Image]], digests: Sequence[Sequence[str]], sizes: Sequence[Sequence[Size]]
    ) -> list[Tensors]:
        """Packed latents (tokens, channels) of each prompt's reference, resized for its sizes."""

        def encode(row: int, size: Size) -> torch.Tensor:
            return self.latents_of(images[row][0], self.reference_size_for(size))

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
        cond = self._predict(latents, sigma, condition, "prompt_embeds", size)
        if self.family_spec.passes_per_step(guidance) == 1:
            return cond
        uncond = self._predict(latents, sigma, condition, "negative_prompt_embeds", size)
        guided = uncond + guidance * (cond - uncond)
        return guided * (cond.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True))

    def _predict(
        self, latents: torch.Tensor, sigma: float, condition: Condition, name: str, size: Size
    ) -> torch.Tensor:
        """One transformer pass with the prompt embeddings ``name``. Returns fp32."""
        reference, dtype = condition.tensors[sized_name("image_latents", size)], self.transformer.dtype
        shapes = [(1, *self.grid(size)), (1, *self.grid(self.reference_size_for(size)))]
        tokens = torch.cat([latents.to(dtype), reference.to(dtype)], dim=1)
        return self._pass(tokens, sigma, condition, sized_name(name, size), shapes)[:, : latents.shape[1]]

    def _pass(
        self,
        tokens: torch.Tensor,
        sigma: float,
        condition: Condition,
        name: str,
        shapes: Sequence[tuple[int, int, int]],
    ) -> torch.Tensor:
        """One pass of the transformer.

        Args:
            tokens: of the image and its references, (N, tokens, channels).
            name: of the tensor of prompt embeddings.
            shapes: frames, rows and columns of the image and each reference.
        """
        dtype = self.transformer.dtype
        velocity: torch.Tensor = self.transformer(
            hidden_states=tokens.to(dtype),
            timestep=torch.full((len(tokens),), sigma, device=self.device, dtype=dtype),
            encoder_hidden_states=condition.tensors[name],
            encoder_hidden_states_mask=condition.tensors.get(mask_of(name)),
            img_shapes=[shapes] * len(tokens),
            return_dict=False,
        )[0]
        return velocity.float()

    def _maps(self, pixels: torch.Tensor) -> torch.Tensor:
        encoded = self.vae.encode(pixels.unsqueeze(2)).latent_dist.mode()
        mean, deviation = self._statistics(encoded)
        maps: torch.Tensor = ((encoded - mean) / deviation)[:, :, 0]
        return maps

    def _pixels(self, maps: torch.Tensor) -> torch.Tensor:
        maps = maps.to(self.vae.dtype)
        mean, deviation = self._statistics(maps)
        pixels: torch.Tensor = self.vae.decode(maps * deviation + mean, return_dict=False)[0][:, :, 0]
        return pixels

    def _statistics(self, maps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation of each latent channel, from the configuration of the autoencoder."""
        rows = self.vae.config.latents_mean, self.vae.config.latents_std
        mean, deviation = (torch.tensor(row).view(1, -1, 1, 1, 1).to(maps) for row in rows)
        return mean, deviation
