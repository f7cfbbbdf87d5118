"""Text embeddings of any diffusers pipeline, made once a prompt, so that its text encoders can go.

A pipeline knows best how it encodes: each class has an ``encode_prompt`` of its own, called with settings
of its own (guidance, sequence length, one or two encoders). So nothing is listed here by class. Each prompt
is sent through the pipeline up to where it would make noise, what ``encode_prompt`` returned is kept, and
from then on that stands in for it.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from paco_core.io.files import DataError

Settings = tuple[tuple[str, object], ...]


class _Encoded(Exception):
    """The pipeline has encoded its prompts and would now begin to paint."""


class CachedPromptEncoder:
    """Stands in for a pipeline's ``encode_prompt``: asks it once a prompt and setting, then answers by heart."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._encode = pipeline.encode_prompt
        self._signature = inspect.signature(self._encode)
        self._kept: dict[str, dict[Settings, tuple[Any, ...]]] = {}
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
        return tuple(tuple(map(_shape, kept)) for kept in self._kept[prompt].values())

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = self._signature.bind(*args, **kwargs).arguments
        texts = [given["prompt"]] if isinstance(given["prompt"], str) else list(given["prompt"])
        simple = str | int | float | bool
        settings = tuple(sorted((k, v) for k, v in given.items() if k != "prompt" and isinstance(v, simple)))
        device = given.get("device") or self._pipeline._execution_device
        for text in texts:
            known = self._kept.setdefault(text, {})
            if settings not in known:
                made = self._encode(**{**given, "prompt": [text]})
                known[settings] = tuple(_moved(value, "cpu") for value in made)  # 4 MB a prompt of FLUX.1-dev
        rows = [self._kept[text][settings] for text in texts]
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
