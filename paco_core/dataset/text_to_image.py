"""Any diffusers text-to-image pipeline, driven so that equal requests give equal pictures.

Prompts are encoded one by one and once, then the encoders are dropped. Batches have one fixed size,
filled up by repeating a request: matrix products of another height may round differently, and a
picture must not depend on its neighbours in the batch.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.files import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.params import GridsParams

#: What ``encode_prompt`` of a pipeline class returns, by the names under which ``__call__`` takes it back
#: (None: not taken back). Pipelines not listed here keep their encoders and are handed the text.
ENCODED: dict[str, tuple[str | None, ...]] = {
    "FluxPipeline": ("prompt_embeds", "pooled_prompt_embeds", None),
    "StableDiffusionPipeline": ("prompt_embeds", "negative_prompt_embeds"),
    "StableDiffusionXLPipeline": (
        "prompt_embeds",
        "negative_prompt_embeds",
        "pooled_prompt_embeds",
        "negative_pooled_prompt_embeds",
    ),
    "StableDiffusion3Pipeline": (
        "prompt_embeds",
        "negative_prompt_embeds",
        "pooled_prompt_embeds",
        "negative_pooled_prompt_embeds",
    ),
}
ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")


@dataclass(frozen=True)
class Request:
    """One picture: its text, its size in pixels, and the seed of its noise."""

    prompt: str
    height: int
    width: int
    noise_seed: int


class TextToImage:
    """A loaded pipeline with fixed settings."""

    def __init__(self, pipeline: Any, params: GridsParams) -> None:
        self.pipeline, self.params = pipeline, params
        self._encoded: dict[str, dict[str, Any]] = {}

    @classmethod
    def load(cls, model: str | Path, params: GridsParams) -> TextToImage:
        """Load from a folder or hub id.

        Raises:
            DataError: when no pipeline is there, or it paints no pictures from text.
        """
        import torch
        from diffusers import DiffusionPipeline

        try:
            pipeline = DiffusionPipeline.from_pretrained(str(model), torch_dtype=getattr(torch, params.dtype))
        except (OSError, ValueError) as error:
            raise DataError(f"{model}: no diffusers pipeline there ({str(error).splitlines()[0]})") from None
        wanted = {"prompt", "height", "width", "num_inference_steps", "generator"}
        if lacking := wanted - set(inspect.signature(pipeline.__call__).parameters):
            raise DataError(
                f"{model}: {type(pipeline).__name__} is no text-to-image pipeline "
                f"(it takes no {', '.join(sorted(lacking))})"
            )
        pipeline.set_progress_bar_config(disable=True)
        return cls(pipeline.to(params.device), params)

    def encode(self, prompts: Sequence[str]) -> None:
        """Encode each distinct prompt once and drop the encoders; a no-op for classes not in ``ENCODED``."""
        import torch

        names = ENCODED.get(type(self.pipeline).__name__)
        if names is None:
            return
        settings = _accepted(
            self.pipeline.encode_prompt,
            prompt_2=None,
            prompt_3=None,
            device=self.params.device,
            num_images_per_prompt=1,
            do_classifier_free_guidance=self.params.guidance > 1,
            max_sequence_length=self.params.max_sequence_length,
        )
        for prompt in dict.fromkeys(prompts):
            with torch.inference_mode():
                made = self.pipeline.encode_prompt([prompt], **settings)
            self._encoded[prompt] = {
                name: tensor.cpu()  # 4 MB a prompt at FLUX.1-dev's size
                for name, tensor in zip(names, made, strict=True)
                if name and tensor is not None
            }
        for encoder in ENCODERS:
            if getattr(self.pipeline, encoder, None) is not None:
                setattr(self.pipeline, encoder, None)
        gc.collect()

    def paint(self, requests: Sequence[Request], batch_size: int) -> list[Image]:
        """Paint up to ``batch_size`` pictures of one size, in one call of the pipeline.

        Raises:
            torch.OutOfMemoryError: when the batch does not fit; nothing is lost then.
        """
        import torch

        sizes = {(request.height, request.width) for request in requests}
        if not 0 < len(requests) <= batch_size or len(sizes) != 1:
            raise ValueError(f"{len(requests)} requests of {len(sizes)} sizes for a batch of {batch_size}")
        filled = [*requests, *[requests[-1]] * (batch_size - len(requests))]
        # CPU generators: the noise is the same whatever device paints.
        noise = [torch.Generator().manual_seed(request.noise_seed) for request in filled]
        settings = _accepted(
            self.pipeline.__call__,
            guidance_scale=self.params.guidance,
            max_sequence_length=self.params.max_sequence_length,
        )
        painted = self.pipeline(
            **self._texts([request.prompt for request in filled]),
            height=filled[0].height,
            width=filled[0].width,
            num_inference_steps=self.params.steps,
            generator=noise,
            **settings,
        ).images
        return list(painted[: len(requests)])

    def _texts(self, prompts: list[str]) -> dict[str, Any]:
        import torch

        if not self._encoded:
            return {"prompt": prompts}
        rows = [self._encoded[prompt] for prompt in prompts]
        return {name: torch.cat([row[name] for row in rows]).to(self.params.device) for name in rows[0]}


def _accepted(function: Any, **settings: Any) -> dict[str, Any]:
    """Those settings that the function takes."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in settings.items() if name in names}
