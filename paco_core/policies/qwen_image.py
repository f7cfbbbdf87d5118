"""Qwen-Image as a policy: a diffusers ``QwenImagePipeline``, text to image.

Transformer, autoencoder and guidance are those of Qwen-Image-Edit. The text encoder reads the prompt without an image.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paco_core.policies.base import References, Size
from paco_core.policies.encoded import Condition, Encoded
from paco_core.policies.encodings import Tensors
from paco_core.policies.qwen_image_edit import NEGATIVE, QwenImageEditPolicy
from paco_core.policies.truncation import Truncation, find_truncation_in_template


class QwenImagePolicy(QwenImageEditPolicy):
    """Text to image with true guidance: two transformer passes per step if ``guidance`` is above 1, else one."""

    family = "qwen_image"

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        return f"""image = pipeline(
    prompt=prompt,
    negative_prompt={NEGATIVE!r},
    true_cfg_scale={guidance:g},
    height={size[0]},
    width={size[1]},
    num_inference_steps={steps},
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
        template, start = self.pipeline.prompt_template_encode, self.pipeline.prompt_template_encode_start_idx
        tokenizer = self.pipeline.tokenizer

        def find(prompt: str) -> Truncation | None:
            return find_truncation_in_template(tokenizer, template.format(prompt), prompt, max_sequence_length, start)

        self.record_truncations(prompts, find)
        rows = self._prompt_embeds(prompts, max_sequence_length)
        if guidance is None or self.family_spec.passes_per_step(guidance) > 1:
            (negative,) = self._prompt_embeds([NEGATIVE], max_sequence_length)
            rows = [row | {"negative_prompt_embeds": negative["prompt_embeds"]} for row in rows]
        return Encoded(rows, self.device)

    def _prompt_embeds(self, texts: Sequence[str], length: int) -> list[Tensors]:
        """Embeddings of each text by Qwen2.5-VL (tokens, d)."""

        def encode(row: int) -> Tensors:
            self.validate_encoders()
            with torch.no_grad():
                embeds, _ = self.pipeline.encode_prompt([texts[row]], self.device, max_sequence_length=length)
            return {"prompt_embeds": embeds[0]}

        return self.cached([["text", text, length] for text in texts], encode)

    def _predict(
        self, latents: torch.Tensor, sigma: float, condition: Condition, name: str, size: Size
    ) -> torch.Tensor:
        return self._pass(latents, sigma, condition, name, [(1, *self.grid(size))])
