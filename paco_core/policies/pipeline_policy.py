"""What the families share: a diffusers flow-matching pipeline, taken apart into the passes that RL needs.

Schedule, packing and decoding are the pipeline's own, so that the same noise gives the same picture here
and in the pipeline's ``__call__``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import diffusers
import numpy as np
import torch
from diffusers.pipelines.flux.pipeline_flux import calculate_shift

from paco_core.adapters.attach import attach, detach, to_save, without
from paco_core.adapters.names import Vocabulary, own_names, renamed, with_or_without
from paco_core.adapters.reader import AdaptedModel, read
from paco_core.io.files import DataError, settle_safetensors
from paco_core.io.imports import uncollected, without_bars
from paco_core.io.pictures import rgb
from paco_core.models.hub import from_hub
from paco_core.models.precision import give_back, painting, validate_pixels, weights_format
from paco_core.models.tokens import validate_prompts
from paco_core.models.weights import load_part, load_pipeline, reading
from paco_core.policies import adapters
from paco_core.policies.base import DECODE_PIXELS, NoiseKey, References, Size, refuse_tokens, sized
from paco_core.policies.cuts import Cut
from paco_core.policies.encoded import Encoded
from paco_core.policies.encodings import Encodings, Tensors, adapters_on, fingerprint
from paco_core.policies.families import Task, family_of, refuse_class, refuse_parts, refuse_references
from paco_core.policies.quantised import quantization

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
        self.known = family_of(self.family)
        self.edits = self.known.edits(task)  # each prompt changes reference pictures
        self.pipeline, self.device, self.reference_size = pipeline, device, reference_size
        self.vae = pipeline.vae
        self.load_transformer: Callable[[], Any] = partial(getattr, pipeline, "transformer")
        self.encodings = encodings or Encodings()
        self.cut: dict[str, Cut] = {}
        self._adapters_at_drop = ""  # on the text encoders, when they were dropped
        for part in (self.vae, *(getattr(pipeline, name) for name in self.known.text_encoders)):
            if part is not None:
                part.requires_grad_(False).eval()

    @cached_property
    def transformer(self) -> Any:
        """The transformer; :meth:`load` leaves it out on a GPU, where it is loaded when it is first asked for.

        A training asks once the text encoders are dropped, so that the GPU never holds both.
        """
        self.pipeline.transformer = self.load_transformer()
        return self.pipeline.transformer.requires_grad_(False).eval()

    @classmethod
    @uncollected()
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
    ) -> Self:
        """Load from a folder or hub id.

        Args:
            base: number format in which a GPU keeps the transformer; that of ``dtype`` when None.

        Raises:
            DataError: when nothing is there, or the pipeline is of another class than the family's.
        """
        wanted = family_of(cls.family).pipeline
        kind = getattr(diffusers, wanted)
        with reading(model):
            try:
                with from_hub(model):
                    found = kind.load_config(model).get("_class_name")
            except OSError as error:
                raise DataError(f"{model}: no diffusers pipeline there ({str(error).splitlines()[0]})") from None
        refuse_class(model, found, cls.family)
        with without_bars(), from_hub(model):
            folder = Path(model if Path(model).is_dir() else kind.download(model))
            refuse_parts(folder, cls.family)
            later = ("transformer",) if device != "cpu" else ()
            pipeline = load_pipeline(kind, folder, weights_format(dtype), later)
        pipeline.set_progress_bar_config(disable=True)
        pipeline.to(device)
        folder_of_cache = None if cache is None else cache / fingerprint(folder, str(weights_format(dtype)), device)
        policy = cls(pipeline, device, task=task, reference_size=reference_size, encodings=Encodings(folder_of_cache))
        policy.dtype = dtype
        if later:
            policy.load_transformer = partial(cls._on_a_gpu, kind, folder, device, dtype, base)
        return policy

    @staticmethod
    def _on_a_gpu(kind: Any, folder: Path, device: str, dtype: str, base: str | None) -> Any:
        options = quantization(base, device)
        loaded = load_part(kind, folder, "transformer", weights_format(dtype), **options)
        return loaded if options else loaded.to(device)

    @property
    def multiple(self) -> int:
        """Pixels a token is high and wide: the VAE's factor times the 2 x 2 packing."""
        return int(self.pipeline.vae_scale_factor) * 2

    def check_size(self, size: Size) -> None:
        refuse_tokens(size, self.multiple)

    def grid(self, size: Size) -> tuple[int, int]:
        """Rows and columns of tokens of a picture of this size."""
        self.check_size(size)
        return size[0] // self.multiple, size[1] // self.multiple

    def reference_of(self, size: Size) -> Size:
        """To what height and width reference pictures are brought for pictures of ``size``.

        The same, or where ``reference_size`` is given about its square in pixels, in the same proportions.
        """
        self.check_size(size)
        if self.reference_size is None:
            return size
        scale = self.reference_size / math.sqrt(size[0] * size[1]) / self.multiple
        return max(1, round(size[0] * scale)) * self.multiple, max(1, round(size[1] * scale)) * self.multiple

    def check_references(
        self, prompts: Sequence[str], references: Sequence[References] | None, sizes: Sequence[Sequence[Size]]
    ) -> list[list[Image]]:
        """The reference pictures of each prompt, in RGB; none where none are taken.

        Raises:
            DataError: unless each prompt has as many as the family takes.
        """
        if not self.edits:
            if references is not None:
                raise DataError(
                    f"the family {self.family} paints from text alone, and was given {len(references)} reference "
                    "pictures; choose a family that edits, or leave them out"
                )
            return [[] for _ in prompts]
        most = self.known.references[1]
        taken = "one reference picture" if most == 1 else f"1 to {most} reference pictures"
        if references is None or len(references) != len(prompts):
            raise DataError(
                f"the family {self.family} changes {taken} per prompt: {len(prompts)} prompts came "
                f"with {len(references or ())} pictures"
            )
        if len(sizes) != len(prompts) or not all(sizes):
            raise ValueError("name the sizes of each prompt's pictures: its reference is encoded for each")
        found = [[rgb(one) for one in (given if isinstance(given, Sequence) else [given])] for given in references]
        for prompt, pictures in zip(prompts, found, strict=True):
            refuse_references(self.family, repr(prompt[:60]), len(pictures))
        return found

    def with_references(self, encoded: Encoded, references: Sequence[Sequence[Image]], size: Size) -> Encoded:  # noqa: ARG002
        raise DataError(f"the family {self.family} does not paint panels one by one; choose panels: together")

    def at_sizes(
        self,
        name: str,
        sizes: Sequence[Sequence[Size]],
        key: Callable[[int, Size], object],
        encode: Callable[[int, Size], torch.Tensor],
    ) -> list[Tensors]:
        """A tensor of each prompt for each size of its own pictures; equal keys are encoded once, and remembered.

        Args:
            name: of the tensor, (tokens, channels) or (tokens,), which :func:`sized` completes.
            key: everything that the tensor depends on, as a JSON value.
        """
        cases = [(row, size) for row, own in enumerate(sizes) for size in dict.fromkeys(own)]

        def one(number: int) -> Tensors:
            with torch.no_grad():
                return {"tensor": encode(*cases[number])}

        encoded = self.cached([key(*case) for case in cases], one)
        found: list[Tensors] = [{} for _ in sizes]
        for (row, size), tensors in zip(cases, encoded, strict=True):
            found[row][sized(name, size)] = tensors["tensor"]
        return found

    def cached(self, inputs: Sequence[object], encode: Callable[[int], Tensors]) -> list[Tensors]:
        """:meth:`Encodings.rows` by the text encoders as they are now, with the adapters on them."""
        encoders = [getattr(self.pipeline, name) for name in self.known.text_encoders]
        return self.encodings.rows(inputs, encode, adapters_on(encoders) or self._adapters_at_drop)

    def note_cuts(self, prompts: Sequence[str], cut_of: Callable[[str], Cut | None]) -> None:
        """Keep what is cut off each prompt that is about to be encoded.

        Args:
            cut_of: what is cut off a prompt, None where it fits.

        Raises:
            DataError: when a prompt contains a mark that a tokenizer of the pipeline reads.
        """
        validate_prompts(self.pipeline, prompts)
        for prompt in prompts:
            self.cut.pop(prompt, None)
            if (cut := cut_of(prompt)) is not None:
                self.cut[prompt] = cut

    def need_encoders(self) -> None:
        """Raise when the text encoders are gone."""
        if any(getattr(self.pipeline, name) is None for name in self.known.text_encoders):
            raise RuntimeError("the text encoders were dropped; encode every prompt before drop_encoders()")

    def drop_encoders(self) -> None:
        self._adapters_at_drop = adapters_on(getattr(self.pipeline, name) for name in self.known.text_encoders)
        for name in self.known.text_encoders:
            setattr(self.pipeline, name, None)
        give_back(self.device)

    def sigmas(self, size: Size, steps: int) -> torch.Tensor:
        rows, columns = self.grid(size)
        scheduler = self.pipeline.scheduler
        config = scheduler.config
        given = None if config.get("use_flow_sigmas") else np.linspace(1.0, 1 / steps, steps)
        shift = self._shift(rows * columns, steps)
        scheduler.set_timesteps(None if given is not None else steps, sigmas=given, mu=shift, device="cpu")
        return scheduler.sigmas.float().clone()

    def _shift(self, tokens: int, steps: int) -> float:  # noqa: ARG002
        """``mu`` of the schedule of a picture of so many tokens."""
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
        """Channels, height and width of the latents that noise is drawn for."""
        rows, columns = self.grid(size)
        return self.transformer.config.in_channels // 4, 2 * rows, 2 * columns

    def _packed(self, maps: torch.Tensor) -> torch.Tensor:
        """Latents (N, channels, height, width) as tokens (N, tokens, channels)."""
        packed: torch.Tensor = self.pipeline._pack_latents(maps, *maps.shape)
        return packed

    def _unpacked(self, latents: torch.Tensor, size: Size) -> torch.Tensor:
        """The reverse of :meth:`_packed`, as the autoencoder takes it."""
        maps: torch.Tensor = self.pipeline._unpack_latents(latents, *size, self.pipeline.vae_scale_factor)
        return maps

    def painting(self) -> AbstractContextManager[None]:
        if self.dtype == "bfloat16" and self.device != "cpu":
            return adapters.rounded(self.transformer)
        return painting(self.device, self.dtype)

    def decoded_at_once(self, latents: torch.Tensor, size: Size) -> Sequence[torch.Tensor]:
        """Latents (N, tokens, channels) in parts of at most :data:`DECODE_PIXELS`, or of one picture."""
        return latents.split(max(1, DECODE_PIXELS // (size[0] * size[1])))

    def decode(self, latents: torch.Tensor, size: Size) -> list[Image]:
        pictures: list[Image] = []
        with torch.no_grad(), self.painting():
            for part in self.decoded_at_once(latents, size):
                pixels = self._pixels(self._unpacked(part, size)).float()
                validate_pixels(pixels, f"{self.family} in {self.dtype}")
                pictures += self.pipeline.image_processor.postprocess(pixels, output_type="pil")
        return pictures

    def _pixels(self, maps: torch.Tensor) -> torch.Tensor:
        """Clean latents, unpacked, to pixels (N, 3, H, W) in -1..1."""
        raise NotImplementedError

    def encode_pictures(self, pictures: Sequence[Image], size: Size) -> torch.Tensor:
        self.check_size(size)
        processor, found = self.pipeline.image_processor, []
        with torch.no_grad():
            for picture in pictures:  # one at a time, so that its latents depend on nothing else
                pixels = processor.preprocess(processor.resize(rgb(picture), *size), *size)
                maps = self._maps(pixels.to(self.device, self.vae.dtype))
                found.append(self._packed(maps).float())
        return torch.cat(found)

    def _maps(self, pixels: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Pixels (N, 3, H, W) in -1..1 to clean latents, unpacked: the inverse of :meth:`_pixels`."""
        raise DataError(f"the family {self.family} does not encode pictures, which the losses dpo and sft learn from")

    def add_adapter(self, lora: LoraParams | PolicyLora, seed: int) -> None:
        adapters.attach(self.transformer, lora, lora.targets or self.known.lora_targets, seed)

    def other_names(self) -> Sequence[Vocabulary]:
        """By which names, beside diffusers' own, files call the transformer's layers."""
        return ()

    def _parts(self) -> dict[str, AdaptedModel]:
        """What an adapter may change."""
        before_26 = {n.removesuffix(".0"): n for n in own_names(self.transformer) if n.endswith(".to_out.0")}
        others = [*self.other_names(), renamed(self.transformer, before_26)]
        parts = {"transformer": AdaptedModel(self.transformer, others)}
        for name in self.known.text_encoders:
            encoder = getattr(self.pipeline, name)
            if encoder is not None:
                parts[name] = AdaptedModel(encoder, [with_or_without(encoder, "text_model.")])
        return parts

    def start_from(self, source: str, scale: float = 1.0) -> None:
        parts = {"transformer": self._parts()["transformer"]}
        adapters.train(self.transformer, read(source, parts)["transformer"], scale)

    def copy_adapter(self, name: str) -> None:
        adapters.add_copy(self.transformer, name)

    def adapter(self, name: str) -> dict[str, torch.Tensor]:
        return adapters.tensors(self.transformer, name)

    def using(self, name: str | None) -> AbstractContextManager[None]:
        return adapters.using(self.transformer, name)

    def load_adapter(self, source: Path | str) -> None:
        parts = self._parts()
        found = read(source, parts)
        for name, part in parts.items():
            if name in found:
                attach(part.module, found[name], adapters.TRAINED)
            else:
                detach(part.module, adapters.TRAINED)  # of the adapter before

    @contextmanager
    def without_adapter(self) -> Iterator[None]:
        with ExitStack() as off:
            for part in self._parts().values():
                off.enter_context(without(part.module))
            yield

    def save_adapter(self, folder: Path) -> None:
        self.pipeline.save_lora_weights(
            str(folder),
            transformer_lora_layers=to_save(self.transformer, adapters.TRAINED),
            transformer_lora_adapter_metadata=adapters.metadata(self.transformer),
        )
        for weights in folder.glob("*.safetensors"):
            settle_safetensors(weights)

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.transformer.named_parameters() if p.requires_grad}

    def enable_gradient_checkpointing(self) -> None:
        self.transformer.enable_gradient_checkpointing()
