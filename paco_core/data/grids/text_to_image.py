"""Text-to-image: any diffusers pipeline, with prompts that are encoded once, then the encoders are dropped.

Batches have one fixed size, filled up by repeating a request: matrix products of another height may round
differently, and a picture must not depend on its neighbours in the batch.

Another batch size may still move a pixel. Measured with data/zoo/flux on a CPU, 48 pictures of 64 px painted at
1, 2, 4, 8 and 16 at once: in float32 6 or 7 of them differ, each by one level in 255, in 2 of 100,000 values; in
bfloat16 none.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paco_core.adapters.attach import attach_layers
from paco_core.adapters.reader import AdaptedModel, read_adapter
from paco_core.io.files import DataError
from paco_core.io.imports import gc_paused, without_bars
from paco_core.models.hub import from_hub
from paco_core.models.precision import inference_autocast, validate_pixels, weights_format
from paco_core.models.tokens import validate_prompts
from paco_core.models.weights import load_pipeline

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import GridsParams


Settings = tuple[tuple[str, object], ...]


class _Encoded(Exception):
    """The pipeline has encoded its prompts and would now begin to paint."""


class CachedPromptEncoder:
    """Stands in for a pipeline's ``encode_prompt``: asks it once a prompt and setting, then answers by heart."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._encode = pipeline.encode_prompt
        self._signature = inspect.signature(self._encode)
        self._embeddings: dict[str, dict[Settings, tuple[Any, ...]]] = {}
        pipeline.encode_prompt = self

    @staticmethod
    def possible(pipeline: Any) -> bool:
        """Whether the class encodes prompts in one place, before it makes noise (nearly every class does)."""
        return callable(getattr(pipeline, "encode_prompt", None)) and callable(
            getattr(pipeline, "prepare_latents", None)
        )

    def encode(self, prompt: str, **call: Any) -> None:
        """Encode one prompt.

        Args:
            call: the arguments with which the pipeline will paint.

        Raises:
            DataError: when the pipeline paints instead, by a way of its own.
        """

        def stop(*_: object, **__: object) -> None:
            raise _Encoded

        self._pipeline.prepare_latents = stop  # hides the method of the class
        try:
            with torch.inference_mode():
                self._pipeline(prompt=[prompt], **call)
        except _Encoded:
            return
        finally:
            del self._pipeline.prepare_latents
        raise DataError(
            f"{type(self._pipeline).__name__} did not use `prepare_latents` to make its noise; "
            "its prompts cannot be encoded in advance"
        )

    def drop_encoders(self) -> None:
        """Free the text encoders' memory; prompts not encoded before cannot be painted any more."""
        loaded = [name for name, part in self._pipeline.components.items() if part is not None]
        parts = [name for name in loaded if name.startswith("text_encoder")]
        dropped = [weakref.ref(getattr(self._pipeline, name)) for name in parts]
        for name in parts:
            setattr(self._pipeline, name, None)
        if any(encoder() is not None for encoder in dropped):  # a hook may refer to it in a circle
            gc.collect()

    def shapes(self, prompt: str) -> Hashable:
        """Sizes of a prompt's embeddings; only prompts of equal sizes fit into one batch."""
        return tuple(tuple(map(_shape, tensors)) for tensors in self._embeddings[prompt].values())

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        arguments = self._signature.bind(*args, **kwargs).arguments
        texts = [arguments["prompt"]] if isinstance(arguments["prompt"], str) else list(arguments["prompt"])
        simple = str | int | float | bool
        settings = tuple(sorted((k, v) for k, v in arguments.items() if k != "prompt" and isinstance(v, simple)))
        device = arguments.get("device") or self._pipeline._execution_device
        for text in texts:
            encoded = self._embeddings.setdefault(text, {})
            if settings not in encoded:
                tensors = self._encode(**{**arguments, "prompt": [text]})
                encoded[settings] = tuple(_moved(value, "cpu") for value in tensors)  # 4 MB a prompt of FLUX.1-dev
        rows = [self._embeddings[text][settings] for text in texts]
        return tuple(_moved(_batched(column), device) for column in zip(*rows, strict=True))


def _shape(value: Any) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(map(_shape, value))
    return tuple(value.shape) if hasattr(value, "shape") else None


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_moved(part, device) for part in value]
    return value.to(device) if hasattr(value, "to") else value


def _batched(column: Sequence[Any]) -> Any:
    """One value for a batch from one value a prompt; what has no batch dimension is the same for all."""
    first = column[0]
    if isinstance(first, list):  # one tensor a prompt, of its own length
        return [part for value in column for part in value]
    if isinstance(first, torch.Tensor) and first.shape[0] == 1:
        return torch.cat(list(column))
    return first


POLICY = "policy"  # name of the adapter on the transformer


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
        self._embeddings: CachedPromptEncoder | None = None

    @classmethod
    @gc_paused()
    def load(cls, model: str | Path, params: GridsParams, adapter: Path | None = None) -> TextToImage:
        """Load from a folder or hub id; with the adapter of a policy, where one is given, as the policy paints.

        Raises:
            DataError: when no pipeline is there, or it paints no pictures from text, or the adapter does not fit.
        """
        # Here, since it asks CUDA for the GPUs, which must be leased before.
        from diffusers import DiffusionPipeline  # noqa: PLC0415

        if Path(model).is_dir() and not (Path(model) / "model_index.json").is_file():
            raise DataError(f"{model}: no diffusers pipeline there (model_index.json is missing)")
        try:
            with without_bars(), from_hub(model):
                folder = Path(
                    model if Path(model).is_dir() else DiffusionPipeline.download(model, use_safetensors=True)
                )
        except (OSError, ValueError) as error:
            raise DataError(f"{model}: no diffusers pipeline there ({str(error).splitlines()[0]})") from None
        with without_bars():
            pipeline = load_pipeline(DiffusionPipeline, folder, weights_format(params.dtype))
        required = {"prompt", "height", "width", "num_inference_steps", "generator"}
        if lacking := required - set(inspect.signature(pipeline.__call__).parameters):
            raise DataError(
                f"{model}: {type(pipeline).__name__} is not a text-to-image pipeline "
                f"(it does not take {', '.join(sorted(lacking))})"
            )
        pipeline.set_progress_bar_config(disable=True)
        pipeline = pipeline.to(params.device)
        if adapter is not None:
            transformer = pipeline.transformer
            attach_layers(
                transformer, read_adapter(adapter, {"transformer": AdaptedModel(transformer)})["transformer"], POLICY
            )
        return cls(pipeline, params)

    def encode(self, requests: Sequence[Request]) -> int:
        """Encode each distinct prompt once and drop the encoders; how many prompts were encoded.

        A class that cannot encode ahead keeps its encoders; none is encoded then.

        Raises:
            DataError: when a prompt contains a mark that a tokenizer of the pipeline reads.
        """
        validate_prompts(self.pipeline, {request.prompt for request in requests})
        if not CachedPromptEncoder.possible(self.pipeline):
            return 0
        self._embeddings = CachedPromptEncoder(self.pipeline)
        distinct = {request.prompt: request for request in requests}
        for request in distinct.values():
            self._embeddings.encode(request.prompt, height=request.height, width=request.width, **self._settings())
        self._embeddings.drop_encoders()
        return len(distinct)

    def kind(self, request: Request) -> Hashable:
        """Requests of one kind fit into one batch: equal sizes of picture and of text embeddings."""
        shapes = self._embeddings.shapes(request.prompt) if self._embeddings else ()
        return request.height, request.width, shapes

    def generate(self, requests: Sequence[Request], batch_size: int) -> list[Image]:
        """Paint up to ``batch_size`` pictures of one kind, in one call of the pipeline.

        Raises:
            torch.OutOfMemoryError: when the batch does not fit; nothing is lost then.
            DataError: when the model generates NaN or infinity.
        """
        kinds = {self.kind(request) for request in requests}
        if not 0 < len(requests) <= batch_size or len(kinds) != 1:
            raise ValueError(f"{len(requests)} requests of {len(kinds)} kinds for a batch of {batch_size}")
        filled = [*requests, *[requests[-1]] * (batch_size - len(requests))]
        # CPU generators: the noise is the same whatever device paints.
        noise = [torch.Generator().manual_seed(request.noise_seed) for request in filled]
        with inference_autocast(self.params.device, self.params.dtype):
            pixels = self.pipeline(
                prompt=[request.prompt for request in filled],
                height=filled[0].height,
                width=filled[0].width,
                generator=noise,
                output_type="np",
                **self._settings(),
            ).images
        validate_pixels(torch.from_numpy(pixels), f"{self.params.model} in {self.params.dtype}")
        return list(self.pipeline.numpy_to_pil(pixels)[: len(requests)])

    def _settings(self) -> dict[str, Any]:
        """The settings of a call, as far as the class knows them; some name guidance otherwise."""
        parameters = inspect.signature(self.pipeline.__call__).parameters
        settings = {
            "num_inference_steps": self.params.steps,
            "guidance_scale": self.params.guidance,
            "max_sequence_length": self.params.max_sequence_length,
            "use_resolution_binning": False,  # paint the very size asked for: it holds a whole number of panels
        }
        return {name: value for name, value in settings.items() if name in parameters}
