"""Base class of the families: a diffusers flow-matching pipeline, divided into the passes that RL needs.

Schedule, packing and decoding call the code of the pipeline. Equal noise gives the same image here and in the
``__call__`` of the pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import diffusers
import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from paco_core.adapters.attach import adapter_state_dict, adapters_disabled, attach_layers, detach_layers
from paco_core.adapters.names import Vocabulary, own_names, renamed, with_or_without
from paco_core.adapters.reader import AdaptedModel, read_adapter
from paco_core.io.files import DataError, settle_safetensors
from paco_core.io.imports import gc_paused, without_bars
from paco_core.io.pictures import normalize_image
from paco_core.models.hub import from_hub
from paco_core.models.modular import is_modular
from paco_core.models.precision import inference_autocast, release_gpu_memory, validate_pixels, weights_format
from paco_core.models.tokens import text_tokenizer, validate_prompts
from paco_core.models.weights import download_pipeline, load_pipeline, reading
from paco_core.policies import adapters
from paco_core.policies.base import DECODE_PIXELS, NoiseKey, References, Size, validate_token_grid
from paco_core.policies.encoded import Encoded
from paco_core.policies.encodings import Encodings, Tensors, encoder_fingerprint, hash_active_adapters
from paco_core.policies.families import (
    Task,
    family_of,
    validate_pipeline_class,
    validate_pipeline_parts,
    validate_reference_count,
    validate_reference_lists,
)
from paco_core.policies.transformer import load_transformer
from paco_core.policies.truncation import Truncation, find_truncation_in_chat
from paco_core.policies.windows import CHATS

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import LoraParams, PolicyLora


class PipelinePolicy:
    """A pipeline with a ``transformer``, a ``vae`` and text encoders; a family adds encoding, velocity, decoding."""

    family: ClassVar[str]
    dtype = "float32"  # of params.yaml, as :meth:`load` was given it

    def __init__(
        self,
        pipeline: Any,
        device: str,
        *,
        task: Task | None = None,
        reference_size: int | None = None,
        encodings: Encodings | None = None,
    ) -> None:
        self.family_spec = family_of(self.family)
        self.edits = self.family_spec.edits(task)  # each prompt edits reference images
        self.pipeline, self.device, self.reference_size = pipeline, device, reference_size
        self.vae = pipeline.vae
        self.load_transformer: Callable[[], Any] = partial(getattr, pipeline, "transformer")
        self.encodings = encodings or Encodings()
        self.truncations: dict[str, Truncation] = {}
        self._adapters_at_drop = ""  # on the text encoders, when they were dropped
        for part in (self.vae, *(getattr(pipeline, name) for name in self.family_spec.text_encoders)):
            if part is not None:
                part.requires_grad_(False).eval()

    @cached_property
    def transformer(self) -> Any:
        """The transformer. On a GPU, it is loaded on first access instead of in :meth:`load`.

        A training accesses it after the text encoders are dropped, so both are never on the GPU at the same time.
        """
        self.pipeline.transformer = self.load_transformer()
        return self.pipeline.transformer.requires_grad_(False).eval()

    @classmethod
    @gc_paused()
    def load(
        cls,
        model: str,
        device: str,
        dtype: str,
        *,
        task: Task | None = None,
        reference_size: int | None = None,
        cache: Path | None = None,
        base: str | None = None,
        transformer: Path | None = None,
    ) -> Self:
        """Load from a folder or hub id.

        Args:
            transformer: file of the transformer's weights. None = those of the model.
            base: number format of the transformer on a GPU. None = that of ``dtype``.

        Raises:
            DataError: if there is no pipeline, or its class is not that of the family.
        """
        pipeline_class = getattr(diffusers, family_of(cls.family).pipeline)
        with reading(model):
            try:
                with from_hub(model):
                    class_name = pipeline_class.load_config(model).get("_class_name")
            except OSError as error:
                raise DataError(f"{model}: there is no diffusers pipeline ({str(error).splitlines()[0]})") from None
        validate_pipeline_class(model, class_name, cls.family)
        with without_bars(), from_hub(model):
            elsewhere = () if transformer is None else ("transformer",)  # its weights are not downloaded
            folder = Path(model) if Path(model).is_dir() else download_pipeline(pipeline_class, model, elsewhere)
            validate_pipeline_parts(folder, cls.family)
            deferred = ("transformer",) if device != "cpu" or transformer is not None else ()
            pipeline = load_pipeline(pipeline_class, folder, weights_format(dtype), deferred)
        if not is_modular(pipeline_class):  # its blocks have the progress bars, and a policy does not run them
            pipeline.set_progress_bar_config(disable=True)
        pipeline.to(device)
        cache_dir = None if cache is None else cache / encoder_fingerprint(folder, str(weights_format(dtype)), device)
        policy = cls(pipeline, device, task=task, reference_size=reference_size, encodings=Encodings(cache_dir))
        policy.dtype = dtype
        if deferred:
            source = model if transformer is not None else folder
            policy.load_transformer = partial(
                load_transformer, pipeline_class, source, device=device, dtype=dtype, base=base, file=transformer
            )
        return policy

    @property
    def multiple(self) -> int:
        """Height and width of a token in pixels: the factor of the VAE times 2 (packing)."""
        return int(self.pipeline.vae_scale_factor) * 2

    def validate_size(self, size: Size) -> None:
        validate_token_grid(size, self.multiple)

    def grid(self, size: Size) -> tuple[int, int]:
        """Rows and columns of tokens of an image of this size."""
        self.validate_size(size)
        return size[0] // self.multiple, size[1] // self.multiple

    def reference_size_for(self, size: Size) -> Size:
        """Height and width of reference images for a generated image of ``size``.

        The same size, or about ``reference_size`` squared pixels in the same proportions if ``reference_size`` is set.
        """
        self.validate_size(size)
        if self.reference_size is None:
            return size
        scale = self.reference_size / math.sqrt(size[0] * size[1]) / self.multiple
        return max(1, round(size[0] * scale)) * self.multiple, max(1, round(size[1] * scale)) * self.multiple

    def prepare_references(
        self, prompts: Sequence[str], references: Sequence[References] | None, sizes: Sequence[Sequence[Size]]
    ) -> list[list[Image]]:
        """Convert the reference images of each prompt to RGB. Each list is empty if the policy does not edit.

        Raises:
            DataError: if the number of references of a prompt is not supported by the family.
        """
        lists = None if references is None else len(references)
        validate_reference_lists(self.family, edits=self.edits, prompts=len(prompts), references=lists)
        if references is None:
            return [[] for _ in prompts]
        if len(sizes) != len(prompts) or not all(sizes):
            raise ValueError(
                "sizes: expected the image sizes of each prompt, because references are encoded for each size"
            )
        images = [
            [normalize_image(image) for image in (of_prompt if isinstance(of_prompt, Sequence) else [of_prompt])]
            for of_prompt in references
        ]
        for prompt, of_prompt in zip(prompts, images, strict=True):
            validate_reference_count(self.family, repr(prompt[:60]), len(of_prompt))
        return images

    def with_references(self, encoded: Encoded, references: Sequence[Sequence[Image]], size: Size) -> Encoded:  # noqa: ARG002
        raise DataError(f"the family {self.family} does not generate panels one by one; choose panels: together")

    def cached(self, inputs: Sequence[object], encode: Callable[[int], Tensors]) -> list[Tensors]:
        """:meth:`Encodings.rows` for the text encoders with their current adapters."""
        encoders = [getattr(self.pipeline, name) for name in self.family_spec.text_encoders]
        return self.encodings.rows(inputs, encode, hash_active_adapters(encoders) or self._adapters_at_drop)

    def record_truncations(self, prompts: Sequence[str], find: Callable[[str], Truncation | None]) -> None:
        """Record the truncation of each prompt that is about to be encoded.

        Args:
            find: returns the truncation of a prompt, None if the prompt fits.

        Raises:
            DataError: if a prompt contains a special token of a tokenizer of the pipeline.
        """
        validate_prompts(self.pipeline, prompts)
        for prompt in prompts:
            self.truncations.pop(prompt, None)
            if (truncation := find(prompt)) is not None:
                self.truncations[prompt] = truncation

    def record_chat_truncations(self, prompts: Sequence[str], window: int) -> None:
        """:meth:`record_truncations` for a pipeline that writes prompts in the chat template of its tokenizer.

        Args:
            window: number of tokens that the text encoder reads, with those of the template.
        """
        tokenizer, thinking = text_tokenizer(self.pipeline.tokenizer), CHATS[self.family_spec.pipeline]
        self.record_truncations(
            prompts, lambda prompt: find_truncation_in_chat(tokenizer, prompt, window, thinking=thinking)
        )

    def validate_encoders(self) -> None:
        """Raise RuntimeError if the text encoders were dropped."""
        if any(getattr(self.pipeline, name) is None for name in self.family_spec.text_encoders):
            raise RuntimeError("the text encoders were dropped; encode every prompt before drop_encoders()")

    def drop_encoders(self) -> None:
        self._adapters_at_drop = hash_active_adapters(
            getattr(self.pipeline, name) for name in self.family_spec.text_encoders
        )
        for name in self.family_spec.text_encoders:
            setattr(self.pipeline, name, None)
        release_gpu_memory(self.device)

    def sigmas(self, size: Size, steps: int) -> torch.Tensor:
        rows, columns = self.grid(size)
        scheduler = self.pipeline.scheduler
        sigmas = self._unshifted_sigmas(steps)
        shift = self._shift(rows * columns, steps)
        scheduler.set_timesteps(None if sigmas is not None else steps, sigmas=sigmas, mu=shift, device="cpu")
        return scheduler.sigmas.float().clone()

    def _unshifted_sigmas(self, steps: int) -> np.ndarray | None:
        """The schedule before the scheduler shifts it, without the last 0. None = that of the scheduler."""
        return None if self.pipeline.scheduler.config.get("use_flow_sigmas") else np.linspace(1.0, 1 / steps, steps)

    def _shift(self, tokens: int, steps: int) -> float:  # noqa: ARG002
        """``mu`` of the schedule, by the number of tokens of an image."""
        config = self.pipeline.scheduler.config
        shift: float = calculate_shift(
            tokens,
            config.get("base_image_seq_len", 256),
            config.get("max_image_seq_len", 4096),
            config.get("base_shift", 0.5),
            config.get("max_shift", 1.15),
        )
        return shift

    def noise(self, size: Size, keys: Sequence[NoiseKey]) -> torch.Tensor:
        shape = self._map_shape(size)
        draws = [
            torch.randn(shape, generator=torch.Generator().manual_seed(key.generator_seed), dtype=torch.float32)
            for key in keys
        ]
        return self._packed(torch.stack(draws)).to(self.device)

    def _map_shape(self, size: Size) -> tuple[int, int, int]:
        """Channels, height and width of the noise latents."""
        rows, columns = self.grid(size)
        return self.transformer.config.in_channels // 4, 2 * rows, 2 * columns

    def _packed(self, maps: torch.Tensor) -> torch.Tensor:
        """Latents (N, channels, height, width) as tokens (N, tokens, channels)."""
        packed: torch.Tensor = self.pipeline._pack_latents(maps, *maps.shape)
        return packed

    def _unpacked(self, latents: torch.Tensor, size: Size) -> torch.Tensor:
        """Inverse of :meth:`_packed`, in the format of the autoencoder."""
        maps: torch.Tensor = self.pipeline._unpack_latents(latents, *size, self.pipeline.vae_scale_factor)
        return maps

    def inference_precision(self) -> AbstractContextManager[None]:
        if self.dtype == "bfloat16" and self.device != "cpu":
            return adapters.round_adapters(self.transformer)
        return inference_autocast(self.device, self.dtype)

    def reuse(self) -> AbstractContextManager[None]:
        """Context of inference in which passes reuse what they compute over a batch, if the family does."""
        return nullcontext()

    def text_parts(self, tokens: int, references: Sequence[Size]) -> torch.Tensor:  # noqa: ARG002
        """:func:`shapes_of` prompt embeddings of a planned pass, (parts, 2).

        Args:
            tokens: number of tokens, including those of references.
            references: height and width of each reference in pixels.
        """
        return torch.tensor([[tokens, 1]])

    def split_for_decoding(self, latents: torch.Tensor, size: Size) -> Sequence[torch.Tensor]:
        """Split latents (N, tokens, channels) into parts of at most :data:`DECODE_PIXELS` or one image."""
        return latents.split(max(1, DECODE_PIXELS // (size[0] * size[1])))

    def decode(self, latents: torch.Tensor, size: Size) -> list[Image]:
        images: list[Image] = []
        with torch.no_grad(), self.inference_precision():
            for part in self.split_for_decoding(latents, size):
                pixels = self._pixels(self._unpacked(part, size)).float()
                validate_pixels(pixels, f"{self.family} in {self.dtype}")
                decoded = self.pipeline.image_processor.postprocess(pixels, output_type="pil")
                images += [normalize_image(image) for image in decoded]
        return images

    def _pixels(self, maps: torch.Tensor) -> torch.Tensor:
        """Decode clean latents, unpacked, to pixels (N, 3 or 4, H, W) in -1..1. A fourth channel is alpha."""
        raise NotImplementedError

    def encode_images(self, images: Sequence[Image], size: Size) -> torch.Tensor:
        self.validate_size(size)
        latents = []
        with torch.no_grad():
            for image in images:  # one at a time, so its latents do not depend on the batch
                pixels = self._resized(normalize_image(image), size)
                maps = self._maps(pixels.to(self.device, self.vae.dtype))
                latents.append(self._packed(maps).float())
        return torch.cat(latents)

    def _resized(self, image: Image, size: Size) -> torch.Tensor:
        """An image, resized, as pixels (1, 3, H, W) in -1..1."""
        processor = self.pipeline.image_processor
        pixels: torch.Tensor = processor.preprocess(processor.resize(image, *size), *size)
        return pixels

    def _maps(self, pixels: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Encode pixels (N, 3, H, W) in -1..1 to clean latents, unpacked. Inverse of :meth:`_pixels`."""
        raise DataError(
            f"the family {self.family} does not encode images, which the losses dpo and sft need; choose another loss"
        )

    def add_adapter(self, lora: LoraParams | PolicyLora, seed: int) -> None:
        adapters.add_lora(self.transformer, lora, lora.targets or self.family_spec.lora_targets, seed)

    def layer_vocabularies(self) -> Sequence[Vocabulary]:
        """Names of the transformer's layers in files of other tools, in addition to those of diffusers."""
        return ()

    def _parts(self) -> dict[str, AdaptedModel]:
        """The modules that an adapter may change."""
        before_26 = {n.removesuffix(".0"): n for n in own_names(self.transformer) if n.endswith(".to_out.0")}
        vocabularies = [*self.layer_vocabularies(), renamed(self.transformer, before_26)]
        parts = {"transformer": AdaptedModel(self.transformer, vocabularies)}
        for name in self.family_spec.text_encoders:
            encoder = getattr(self.pipeline, name)
            if encoder is not None:
                parts[name] = AdaptedModel(encoder, [with_or_without(encoder, "text_model.")])
        return parts

    def start_from(self, source: str, scale: float = 1.0) -> None:
        parts = {"transformer": self._parts()["transformer"]}
        adapters.attach_trainable(self.transformer, read_adapter(source, parts)["transformer"], scale)

    def copy_adapter(self, name: str) -> None:
        adapters.add_copy(self.transformer, name)

    def adapter(self, name: str) -> dict[str, torch.Tensor]:
        return adapters.adapter_tensors(self.transformer, name)

    def using(self, name: str | None) -> AbstractContextManager[None]:
        return adapters.use_adapter(self.transformer, name)

    def load_adapter(self, source: Path | str) -> None:
        parts = self._parts()
        layers_by_part = read_adapter(source, parts)
        for name, part in parts.items():
            if name in layers_by_part:
                attach_layers(part.module, layers_by_part[name], adapters.TRAINED)
            else:
                detach_layers(part.module, adapters.TRAINED)  # layers of the previous adapter

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        with ExitStack() as off:
            for part in self._parts().values():
                off.enter_context(adapters_disabled(part.module))
            yield

    def save_adapter(self, folder: Path) -> None:
        self.pipeline.save_lora_weights(
            str(folder),
            transformer_lora_layers=adapter_state_dict(self.transformer, adapters.TRAINED),
            transformer_lora_adapter_metadata=adapters.adapter_metadata(self.transformer),
        )
        for weights in folder.glob("*.safetensors"):
            settle_safetensors(weights)

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.transformer.named_parameters() if p.requires_grad}

    def enable_gradient_checkpointing(self) -> None:
        self.transformer.enable_gradient_checkpointing()
