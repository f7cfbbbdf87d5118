"""FLUX as a policy: a plain diffusers ``FluxPipeline``, taken apart into the passes that RL needs.

Schedule, packing, guidance embedding and decoding are the pipeline's own, so that the same noise
gives the same picture here and in ``FluxPipeline.__call__``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.files import DataError
from paco_core.policies import adapters
from paco_core.policies.base import Condition, NoiseKey, Size, without_bars

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

    from paco_core.params import LoraParams

ENCODE_BATCH, DECODE_BATCH = 64, 64


class FluxPolicy:
    """Text to image with guidance embedding: one transformer pass a step."""

    family = "flux"
    pipeline_class = "FluxPipeline"

    def __init__(self, pipeline: Any, device: str) -> None:
        self.pipeline, self.device = pipeline, device
        self.transformer, self.vae = pipeline.transformer, pipeline.vae
        self.truncated = 0
        self._image_ids: dict[Size, torch.Tensor] = {}
        for part in (self.transformer, self.vae, pipeline.text_encoder, pipeline.text_encoder_2):
            if part is not None:
                part.requires_grad_(False).eval()

    @classmethod
    def load(cls, model: str, device: str, dtype: str) -> FluxPolicy:
        """Load from a folder or hub id.

        Raises:
            DataError: when nothing is there, or the pipeline is of another class than ``FluxPipeline``.
        """
        import torch
        from diffusers import FluxPipeline

        try:
            found = FluxPipeline.load_config(model).get("_class_name")
        except OSError as error:
            raise DataError(f"{model}: no diffusers pipeline there ({str(error).splitlines()[0]})") from None
        if found != cls.pipeline_class:
            raise DataError(f"{model}: holds a {found}, the family flux needs a {cls.pipeline_class}")
        with without_bars():
            pipeline = FluxPipeline.from_pretrained(model, dtype=getattr(torch, dtype))
        pipeline.set_progress_bar_config(disable=True)
        pipeline.to(device)
        pipeline.vae.to(memory_format=torch.channels_last)  # a quarter less time for its convolutions
        return cls(pipeline, device)

    @property
    def multiple(self) -> int:
        """Pixels a token is high and wide: the VAE's factor times the 2 x 2 packing."""
        return int(self.pipeline.vae_scale_factor) * 2

    def check_size(self, size: Size) -> None:
        if any(side <= 0 or side % self.multiple for side in size):
            near = [max(1, round(side / self.multiple)) * self.multiple for side in size]
            raise DataError(
                f"a picture of {size[0]} x {size[1]} does not divide into {self.multiple} px tokens; "
                f"the nearest that does is {near[0]} x {near[1]}"
            )

    def _grid(self, size: Size) -> tuple[int, int]:
        self.check_size(size)
        return size[0] // self.multiple, size[1] // self.multiple

    def encode(self, prompts: Sequence[str], max_sequence_length: int) -> Condition:
        import torch

        if self.pipeline.text_encoder is None:
            raise RuntimeError("the text encoders were dropped; encode every prompt before drop_encoders()")
        lengths = self.pipeline.tokenizer_2(list(prompts)).input_ids
        self.truncated += sum(len(ids) > max_sequence_length for ids in lengths)
        texts, pooled = [], []
        with torch.inference_mode():
            for start in range(0, len(prompts), ENCODE_BATCH):
                text, pool, _ = self.pipeline.encode_prompt(
                    prompt=list(prompts[start : start + ENCODE_BATCH]),
                    prompt_2=None,
                    device=self.device,
                    max_sequence_length=max_sequence_length,
                )
                texts.append(text)
                pooled.append(pool)
        # Joined outside inference mode: a trained pass may not save inference tensors for its backward.
        return Condition({"text": torch.cat(texts), "pooled": torch.cat(pooled)})

    def drop_encoders(self) -> None:
        self.pipeline.text_encoder = self.pipeline.text_encoder_2 = None

    def sigmas(self, size: Size, steps: int) -> torch.Tensor:
        import numpy as np
        from diffusers.pipelines.flux.pipeline_flux import calculate_shift

        rows, columns = self._grid(size)
        scheduler = self.pipeline.scheduler
        config = scheduler.config
        shift = calculate_shift(
            rows * columns,
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", 1.15),
        )
        given = None if config.get("use_flow_sigmas") else np.linspace(1.0, 1 / steps, steps)
        scheduler.set_timesteps(None if given is not None else steps, sigmas=given, mu=shift, device="cpu")
        return scheduler.sigmas.float().clone()

    def noise(self, size: Size, keys: Sequence[NoiseKey]) -> torch.Tensor:
        import torch

        rows, columns = self._grid(size)
        channels = self.transformer.config.in_channels // 4
        draws = [
            torch.randn(
                (channels, 2 * rows, 2 * columns),
                generator=torch.Generator().manual_seed(key.generator_seed),
                dtype=torch.float32,
            )
            for key in keys
        ]
        packed = self.pipeline._pack_latents(torch.stack(draws), len(keys), channels, 2 * rows, 2 * columns)
        return packed.to(self.device)

    def _ids(self, size: Size) -> torch.Tensor:
        if size not in self._image_ids:
            rows, columns = self._grid(size)
            self._image_ids[size] = self.pipeline._prepare_latent_image_ids(
                1, rows, columns, self.device, self.transformer.dtype
            )
        return self._image_ids[size]

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        import torch

        dtype, count = self.transformer.dtype, len(latents)
        text = condition.tensors["text"]
        scale = None
        if self.transformer.config.guidance_embeds:
            scale = torch.full((count,), guidance, device=self.device, dtype=torch.float32)
        predicted = self.transformer(
            hidden_states=latents.to(dtype),
            timestep=torch.full((count,), sigma, device=self.device, dtype=torch.float32),
            guidance=scale,
            pooled_projections=condition.tensors["pooled"],
            encoder_hidden_states=text,
            txt_ids=torch.zeros(text.shape[1], 3, device=self.device, dtype=dtype),
            img_ids=self._ids(size),
            return_dict=False,
        )[0]
        return predicted.float()

    def decode(self, latents: torch.Tensor, size: Size) -> list[Image]:
        import torch

        pictures: list[Image] = []
        config = self.vae.config
        with torch.inference_mode():
            for part in latents.split(DECODE_BATCH):
                maps = self.pipeline._unpack_latents(part, *size, self.pipeline.vae_scale_factor)
                maps = (maps / config.scaling_factor + config.shift_factor).to(self.vae.dtype)
                pixels = self.vae.decode(maps, return_dict=False)[0]
                pictures += self.pipeline.image_processor.postprocess(pixels, output_type="pil")
        return pictures

    def add_adapter(self, lora: LoraParams, seed: int) -> None:
        adapters.attach(self.transformer, lora, seed)

    def start_from(self, source: str) -> None:
        adapters.load_trainable(self.pipeline, source)

    def copy_adapter(self, name: str) -> None:
        adapters.add_copy(self.transformer, name)

    def adapter(self, name: str) -> dict[str, torch.Tensor]:
        return adapters.tensors(self.transformer, name)

    def using(self, name: str | None) -> AbstractContextManager[None]:
        return adapters.using(self.transformer, name)

    def load_adapter(self, folder: Path) -> None:
        self.pipeline.load_lora_weights(str(folder))

    def save_adapter(self, folder: Path) -> None:
        from peft.utils import get_peft_model_state_dict

        self.pipeline.save_lora_weights(
            str(folder),
            transformer_lora_layers=get_peft_model_state_dict(self.transformer),
            transformer_lora_adapter_metadata=adapters.metadata(self.transformer),
        )

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.transformer.named_parameters() if p.requires_grad}

    def enable_gradient_checkpointing(self) -> None:
        self.transformer.enable_gradient_checkpointing()
