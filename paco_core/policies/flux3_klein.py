"""FLUX 3 Klein Base as a policy: a modular diffusers pipeline ``Flux3ModularPipeline``, which generates and edits.

Qwen3-VL reads the prompt in its chat template, without the reference images, and eight of its layers are concatenated.
A prompt is padded to a multiple of 80 tokens. The transformer attends to the padding, so each pass has prompts of one
padded length. Reference images are tokens of a separate kind with clean latents: they have the time 0. The autoencoder
is that of FLUX.2. The prompt upsampler of the pipeline is not used: the training encodes each prompt as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from diffusers.image_processor import VaeImageProcessor
from diffusers.modular_pipelines.flux3.before_denoise import Flux3TextRoPEInputsStep, _prepare_image_ids
from diffusers.modular_pipelines.flux3.decoders import Flux3DecodeStep
from diffusers.modular_pipelines.flux3.encoders import Flux3TextEncoderStep, Flux3VaeEncoderStep

from paco_core.adapters.names import Vocabulary
from paco_core.io.files import DataError
from paco_core.policies.base import Size, sized_name
from paco_core.policies.encoded import Condition, group_by_shapes, shapes_of, ungroup
from paco_core.policies.encodings import Tensors
from paco_core.policies.flux2_klein import Flux2KleinPolicy
from paco_core.policies.flux3_parts import LAYERS
from paco_core.policies.flux_names import FLUX3, original_names

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_ROPE_SCALE = 0.5  # of the positions of image tokens: default of the pipeline's steps


class Flux3KleinPolicy(Flux2KleinPolicy):
    """Text to image, or editing one to ten references. A guided step needs two passes, else one."""

    family = "flux3_klein"
    max_area: ClassVar[int] = 4 * 1024 * 1024  # of one reference: the pipeline scales each of several to 1024 x 1024
    min_area: ClassVar[int] = 16 * 16 + 2  # a token; + 2, because the pipeline rounds down

    def layer_vocabularies(self) -> Sequence[Vocabulary]:
        return (original_names(self.transformer, FLUX3),)

    def _example(self, size: Size, steps: int, guidance: float, max_sequence_length: int, image: str) -> str:
        guider = f"pipeline.update_components(guider=pipeline.guider.new(guidance_scale={guidance:g}))"
        return f"{guider}\n{super()._example(size, steps, guidance, max_sequence_length, image)}"

    def _guidance_argument(self, guidance: float) -> str:  # noqa: ARG002
        return ""

    def passes(self, guidance: float) -> int:
        return self.family_spec.passes_per_step(guidance)

    def _texts(self, name: str, texts: Sequence[str], length: int) -> list[Tensors]:
        """Eight concatenated layers of Qwen3-VL (tokens, 8 d), with padding, and their shape."""

        def encode(row: int) -> Tensors:
            self.validate_encoders()
            with torch.no_grad():
                embeds = Flux3TextEncoderStep._get_qwen3_vl_prompt_embeds(
                    self.pipeline.text_encoder,
                    self.pipeline.tokenizer,
                    texts[row],
                    device=torch.device(self.device),
                    max_sequence_length=length,
                    hidden_states_layers=LAYERS,
                )
            return {"prompt_embeds": embeds[0]}

        rows = [tensors["prompt_embeds"] for tensors in self.cached([["text", text, length] for text in texts], encode)]
        return [{name: embeds, shapes_of(name): torch.tensor([[len(embeds), 1]])} for embeds in rows]

    def _resize_mode(self, count: int) -> str:
        return "fill" if count == 1 else "crop"

    def _reference_pixels(self, image: Image, resized: Image, mode: str) -> torch.Tensor:
        least, most = self.family_spec.min_reference_side, self.family_spec.max_reference_ratio
        if min(image.size) < least or max(image.size) > most * min(image.size):
            raise DataError(
                f"a reference image is not supported: {image.width} x {image.height} px; expected sides of at least "
                f"{least} px, and at most {most} times as long as each other"
            )
        pixels: torch.Tensor
        pixels, _ = self.pipeline.image_processor.preprocess(resized, resize_mode=mode)
        return pixels

    def _predict(
        self, latents: torch.Tensor, sigma: float, condition: Condition, name: str, size: Size
    ) -> torch.Tensor:
        """Velocity of each row in fp32. One pass per group of rows with equal lengths and shapes of references."""
        prompt_embeds, reference = condition.tensors[name], sized_name("image_latents", size)
        shapes = condition.tensors[shapes_of(name)]
        if reference in condition.tensors:
            shapes = torch.cat([shapes, condition.tensors[shapes_of(reference)]], dim=1)
        groups = group_by_shapes(shapes)
        velocities = []
        for ((length, _), *of_references), rows in groups.items():
            images = None
            if of_references:
                tokens = sum(height * width for height, width in of_references)
                images = condition.tensors[reference][rows, :tokens]
            velocities.append(
                self._pass(latents[rows], sigma, prompt_embeds[rows, :length], size, images, of_references)
            )
        return ungroup(velocities, groups.values())

    def _pass(
        self,
        latents: torch.Tensor,
        sigma: float,
        prompt_embeds: torch.Tensor,
        size: Size,
        reference: torch.Tensor | None,
        shapes: Sequence[Size],
    ) -> torch.Tensor:
        dtype, device = self.transformer.dtype, self.device
        ids = [_prepare_image_ids(*shape, IMAGE_ROPE_SCALE, l_coord=-(1 + index)) for index, shape in enumerate(shapes)]
        velocity: torch.Tensor = self.transformer(
            hidden_states=latents.to(dtype),
            encoder_hidden_states=prompt_embeds.to(dtype),
            timestep=torch.full((len(latents),), sigma, device=device, dtype=torch.float32),
            img_ids=_prepare_image_ids(*self.grid(size), IMAGE_ROPE_SCALE).to(device),
            txt_ids=Flux3TextRoPEInputsStep._prepare_text_ids(prompt_embeds).to(device),
            image_cond_hidden_states=None if reference is None else reference.to(dtype),
            image_cond_ids=None if reference is None else torch.cat(ids).to(device),
            return_dict=False,
        )[0]
        return velocity.float()

    def _shift(self, tokens: int, steps: int) -> float:  # noqa: ARG002
        return 1.0  # the schedule has a fixed shift, which the scheduler applies itself

    def _packed(self, maps: torch.Tensor) -> torch.Tensor:
        return maps.flatten(2).transpose(1, 2)

    def _statistics(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation (1, channels, 1, 1) of the latents, as the pipeline computes them."""
        statistics = self.vae.bn
        mean, variance = (v.view(1, -1, 1, 1) for v in (statistics.running_mean, statistics.running_var))
        std = (variance + self.vae.config.batch_norm_eps).sqrt()
        return mean.to(self.device, dtype), std.to(self.device, dtype)

    def _unpacked(self, latents: torch.Tensor, size: Size) -> torch.Tensor:
        mean, std = self._statistics(latents.dtype)
        maps = latents.transpose(1, 2).unflatten(2, self.grid(size)) * std + mean
        unpatched: torch.Tensor = Flux3DecodeStep._unpatchify_latents(maps)
        return unpatched

    def _resized(self, image: Image, size: Size) -> torch.Tensor:
        processor = self.pipeline.image_processor
        pixels: torch.Tensor = VaeImageProcessor.preprocess(processor, processor.resize(image, *size), *size)
        return pixels

    def _maps(self, pixels: torch.Tensor) -> torch.Tensor:
        mean, std = self._statistics(self.vae.dtype)
        patches = Flux3VaeEncoderStep._patchify_latents(self.vae.encode(pixels).latent_dist.mode())
        return (patches - mean) / std
