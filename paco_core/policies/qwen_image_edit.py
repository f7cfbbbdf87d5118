"""Qwen-Image-Edit as a policy: a plain diffusers ``QwenImageEditPipeline``, which changes a reference picture.

A Qwen2.5-VL reads the instruction and the reference together; the reference's latents stand beside the noisy
ones. Guidance is true classifier-free guidance against an empty instruction, with the pipeline's rescaling of
each token to the norm that it has without guidance.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from paco_core.io.pictures import picture_digest
from paco_core.policies.base import References, Size, sized
from paco_core.policies.cuts import Cut, cut_of, read_part
from paco_core.policies.encoded import Condition, Encoded, mask_of
from paco_core.policies.encodings import Tensors
from paco_core.policies.one_frame import one_frame
from paco_core.policies.pipeline_policy import PipelinePolicy

if TYPE_CHECKING:
    from PIL.Image import Image

NEGATIVE = " "  # what the authors' own example gives as the negative prompt


class QwenImageEditPolicy(PipelinePolicy):
    """Editing with true guidance: two transformer passes a step where ``guidance`` is above 1, else one."""

    family = "qwen_image_edit"

    def __init__(self, pipeline: Any, device: str, **more: Any) -> None:
        super().__init__(pipeline, device, **more)
        one_frame(self.vae)

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:  # noqa: ARG002
        height, width = self.reference_of(size)
        return f"""# The picture is brought to the size of training; the pipeline alone brings it to a million pixels.
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
        pictures = self.check_references(prompts, references, sizes)
        names = [[picture_digest(picture) for picture in row] for row in pictures]
        instructions = [read_part(self.pipeline.tokenizer, prompt, max_sequence_length) for prompt in prompts]
        read = dict(zip(prompts, instructions, strict=True))
        self.note_cuts(prompts, lambda prompt: self._cut(prompt, read[prompt], max_sequence_length))
        parts = [self._references(pictures, names, sizes)]
        parts.append(self._texts("text", instructions, pictures, names, sizes))
        if guidance is None or self.known.passes_a_step(guidance) > 1:
            parts.append(self._texts("negative", [NEGATIVE] * len(pictures), pictures, names, sizes))
        return Encoded([dict(ChainMap(*row)) for row in zip(*parts, strict=True)], self.device)

    def seen_at(self, picture: Image, size: Size) -> Size:  # noqa: ARG002
        """At what height and width the text encoder sees a reference of a painted picture of ``size``."""
        return self.reference_of(size)

    def seen(self, pictures: Sequence[Image], size: Size) -> Any:
        """The references as the pipeline's ``encode_prompt`` takes them."""
        return self.pipeline.image_processor.resize(pictures[0], *self.seen_at(pictures[0], size))

    def latents_of(self, picture: Image, brought: Size) -> torch.Tensor:
        """Packed latents (tokens, channels) of a reference that is brought to a height and width."""
        processor = self.pipeline.image_processor
        pixels = processor.preprocess(processor.resize(picture, *brought), *brought)
        return self._packed(self._maps(pixels.to(self.device, self.vae.dtype)))[0]

    def _cut(self, prompt: str, read: str, length: int) -> Cut | None:
        cut = cut_of(self.pipeline.tokenizer, prompt, length, closing=False)
        return None if cut is None else replace(cut, lost=prompt[len(read) :].strip())

    def _texts(
        self,
        part: str,
        texts: Sequence[str],
        pictures: Sequence[Sequence[Image]],
        names: Sequence[Sequence[str]],
        sizes: Sequence[Sequence[Size]],
    ) -> list[Tensors]:
        """What the Qwen2.5-VL makes of each prompt's pictures and its text (tokens, d)."""

        def key(row: int, size: Size) -> object:
            return ["text", texts[row], names[row], [self.seen_at(picture, size) for picture in pictures[row]]]

        def encode(row: int, size: Size) -> torch.Tensor:
            self.need_encoders()
            tokens, _ = self.pipeline.encode_prompt(
                prompt=[texts[row]], image=self.seen(pictures[row], size), device=self.device
            )
            words: torch.Tensor = tokens[0]
            return words

        return self.at_sizes(part, sizes, key, encode)

    def _references(
        self, pictures: Sequence[Sequence[Image]], names: Sequence[Sequence[str]], sizes: Sequence[Sequence[Size]]
    ) -> list[Tensors]:
        """Packed latents (tokens, channels) of each prompt's picture, brought to its sizes."""

        def encode(row: int, size: Size) -> torch.Tensor:
            return self.latents_of(pictures[row][0], self.reference_of(size))

        return self.at_sizes("reference", sizes, lambda row, s: ["reference", names[row], self.reference_of(s)], encode)

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        asked = self._predict(latents, sigma, condition, "text", size)
        if self.known.passes_a_step(guidance) == 1:
            return asked
        unasked = self._predict(latents, sigma, condition, "negative", size)
        guided = unasked + guidance * (asked - unasked)
        return guided * (asked.norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True))

    def _predict(
        self, latents: torch.Tensor, sigma: float, condition: Condition, name: str, size: Size
    ) -> torch.Tensor:
        """One transformer pass with the instruction, or the empty one, of each row; fp32."""
        reference, dtype = condition.tensors[sized("reference", size)], self.transformer.dtype
        shapes = [(1, *self.grid(size)), (1, *self.grid(self.reference_of(size)))]
        tokens = torch.cat([latents.to(dtype), reference.to(dtype)], dim=1)
        return self._pass(tokens, sigma, condition, sized(name, size), shapes)[:, : latents.shape[1]]

    def _pass(
        self,
        tokens: torch.Tensor,
        sigma: float,
        condition: Condition,
        name: str,
        shapes: Sequence[tuple[int, int, int]],
    ) -> torch.Tensor:
        """The transformer over tokens of pictures of these frames, rows and columns; ``name`` = the text's tensor."""
        dtype = self.transformer.dtype
        predicted: torch.Tensor = self.transformer(
            hidden_states=tokens.to(dtype),
            timestep=torch.full((len(tokens),), sigma, device=self.device, dtype=dtype),
            encoder_hidden_states=condition.tensors[name],
            encoder_hidden_states_mask=condition.tensors.get(mask_of(name)),
            img_shapes=[shapes] * len(tokens),
            return_dict=False,
        )[0]
        return predicted.float()

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
        """Mean and deviation of each channel of latents, by the autoencoder's configuration."""
        rows = self.vae.config.latents_mean, self.vae.config.latents_std
        mean, deviation = (torch.tensor(row).view(1, -1, 1, 1, 1).to(maps) for row in rows)
        return mean, deviation
