"""Z-Image as a policy: a diffusers ``ZImagePipeline``, text to image.

Qwen3 reads the prompt in its chat template, and the transformer reads its second to last hidden state. The transformer
has the time ``1 - sigma`` and predicts the negative velocity. The autoencoder is that of FLUX.1. As in the pipeline,
guidance is neither truncated nor renormalized by default.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from paco_core.adapters.names import Vocabulary
from paco_core.policies.base import References, Size
from paco_core.policies.encoded import Condition, Encoded, shapes_of
from paco_core.policies.encodings import Tensors
from paco_core.policies.flux import FluxPolicy
from paco_core.policies.flux_names import Table, original_names

NEGATIVE = ""  # negative prompt of the pipeline
PATCH = 2  # height and width of a token in latents
FINAL = "all_final_layer.2-1"  # of patches of 2 x 2 latents of one frame
#: Original names of layers: those of the authors and of ComfyUI.
ORIGINAL: Table = {
    **{
        f"{blocks}.{{}}.attention.{original}": tuple(f"{blocks}.{{}}.attention.{layer}" for layer in layers)
        for blocks in ("layers", "noise_refiner", "context_refiner")
        for original, layers in {"qkv": ("to_q", "to_k", "to_v"), "out": ("to_out.0",)}.items()
    },
    "x_embedder": ("all_x_embedder.2-1",),
    "final_layer.linear": (f"{FINAL}.linear",),
    "final_layer.adaLN_modulation.1": (f"{FINAL}.adaLN_modulation.1",),
}


class ZImagePolicy(FluxPolicy):
    """Text to image with true guidance: two transformer passes per step if ``guidance`` is above 1, else one."""

    family = "z_image"

    def layer_vocabularies(self) -> Sequence[Vocabulary]:
        return (original_names(self.transformer, ORIGINAL),)

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        scale = max(0.0, guidance - 1)
        return f"""image = pipeline(
    prompt,
    height={size[0]},
    width={size[1]},
    num_inference_steps={steps},
    guidance_scale={scale:g},  # that of the training minus 1, because this pipeline counts from 0
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
        guidance: float | None = None,
    ) -> Encoded:
        self.prepare_references(prompts, references, sizes)
        self.record_chat_truncations(prompts, max_sequence_length)
        rows = self._prompt_embeds("prompt_embeds", prompts, max_sequence_length)
        if guidance is None or self.family_spec.passes_per_step(guidance) > 1:
            (negative,) = self._prompt_embeds("negative_prompt_embeds", [NEGATIVE], max_sequence_length)
            rows = [row | negative for row in rows]
        return Encoded(rows, self.device)

    def _prompt_embeds(self, name: str, texts: Sequence[str], length: int) -> list[Tensors]:
        """Embeddings ``name`` of each text (tokens, d), and their shape, as each row of a pass has its own length."""

        def encode(row: int) -> Tensors:
            self.validate_encoders()
            with torch.no_grad():
                (embeds,), _ = self.pipeline.encode_prompt(
                    [texts[row]], self.device, do_classifier_free_guidance=False, max_sequence_length=length
                )
            return {"prompt_embeds": embeds}

        rows = [tensors["prompt_embeds"] for tensors in self.cached([["text", text, length] for text in texts], encode)]
        return [{name: embeds, shapes_of(name): torch.tensor([[len(embeds), 1]])} for embeds in rows]

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        cond = self._pass(latents, sigma, condition, "prompt_embeds", size)
        if self.family_spec.passes_per_step(guidance) == 1:
            return cond
        uncond = self._pass(latents, sigma, condition, "negative_prompt_embeds", size)
        return cond + (guidance - 1) * (cond - uncond)

    def _pass(self, latents: torch.Tensor, sigma: float, condition: Condition, name: str, size: Size) -> torch.Tensor:
        """Velocity of one transformer pass with the prompt embeddings ``name``, in fp32."""
        maps = self._unpacked(latents, size).to(self.transformer.dtype).unsqueeze(2)  # with one frame
        lengths = condition.tensors[shapes_of(name)][:, 0, 0].tolist()
        prompt_embeds = [row[:length] for row, length in zip(condition.tensors[name], lengths, strict=True)]
        time = torch.full((len(latents),), 1 - sigma, device=self.device, dtype=torch.float32)
        noise_pred = self.transformer(list(maps), time, prompt_embeds, return_dict=False)[0]
        return -self._packed(torch.stack(noise_pred).squeeze(2)).float()

    def _map_shape(self, size: Size) -> tuple[int, int, int]:
        rows, columns = self.grid(size)
        return self.transformer.config.in_channels, PATCH * rows, PATCH * columns

    def _packed(self, maps: torch.Tensor) -> torch.Tensor:
        return pixel_unshuffle(maps, PATCH).flatten(2).transpose(1, 2)

    def _unpacked(self, latents: torch.Tensor, size: Size) -> torch.Tensor:
        return pixel_shuffle(latents.transpose(1, 2).unflatten(2, self.grid(size)), PATCH)
