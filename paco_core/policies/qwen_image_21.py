"""Qwen-Image-2.1 as a policy: a diffusers ``QwenImage21Pipeline``, which generates and edits.

Qwen3-VL reads the prompt and up to ten references together. In the sequence of the transformer, the latents of each
reference replace the image tokens of the text, and the noisy latents are the last part. Each part attends to itself and
to the parts before it. Text and references are modulated as at time 0, so their keys and values are equal in all
sampling steps. Passes of inference compute them once (:meth:`inference_precision`).

Positions depend on the length of the text, so rows of different lengths have separate passes. The autoencoder has an
alpha channel. paco composes generated images over white.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21KVCache

from paco_core.io.files import DataError
from paco_core.io.pictures import picture_digest
from paco_core.policies.base import References, Size, sized_name
from paco_core.policies.encoded import Condition, Encoded, group_by_shapes, shapes_of, ungroup
from paco_core.policies.encodings import Cached, Encodings, Tensors
from paco_core.policies.qwen_image_edit import NEGATIVE
from paco_core.policies.qwen_image_edit_plus import QwenImageEditPlusPolicy, resized

if TYPE_CHECKING:
    from PIL.Image import Image

SLOT = 4  # tokens of latents, 2 x 2, for each image token of the text encoder
INSTRUCTION = "instruction"  # tensor with the UTF-8 bytes of a prompt


class QwenImage21Policy(QwenImageEditPlusPolicy):
    """Text to image, or editing one to ten references. A step needs two passes if ``guidance`` is above 1, else one."""

    family = "qwen_image_21"

    def __init__(self, pipeline: Any, device: str, **options: Any) -> None:
        super().__init__(pipeline, device, **options)
        self._reuses = False

    @contextmanager
    def inference_precision(self) -> Iterator[None]:
        with super().inference_precision(), self.reuse():
            yield

    @contextmanager
    def reuse(self) -> Iterator[None]:
        """Context in which passes without gradient store and reuse the keys and values of text and references."""
        self._reuses = True
        try:
            yield
        finally:
            self._reuses = False

    def text_parts(self, tokens: int, references: Sequence[Size]) -> torch.Tensor:
        """Parts (parts, 2) of a text with its references first, as of :meth:`_parts_of_text`."""
        grids = [self.grid(size) for size in references]
        return torch.tensor([*grids, (tokens - sum(map(math.prod, grids)) // SLOT, 0)])

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:  # noqa: ARG002
        if self.edits:
            return self._example(size, steps, guidance, "picture")
        return "from PIL import Image\n\n" + self._example(size, steps, guidance, None)

    def panel_example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:  # noqa: ARG002
        return self._example(size, steps, guidance, "picture or None")

    def _example(self, size: Size, steps: int, guidance: float, images: str | None) -> str:
        """:meth:`example`, with the code ``images`` of the argument for reference images."""
        arguments = {"prompt": "prompt"}
        if images is not None:  # by default, the pipeline resizes them to a million pixels
            arguments |= {"image": images, "output_resolution": repr(self.reference_side(size))}
        if self.family_spec.passes_per_step(guidance) > 1:
            arguments |= {"negative_prompt": repr(NEGATIVE), "true_cfg_scale": f"{guidance:g}"}
        arguments |= {"height": str(size[0]), "width": str(size[1]), "num_inference_steps": str(steps)}
        if self.pipeline.config.sample_sigmas is not None:
            arguments["sigmas"] = str(self._unshifted_sigmas(steps).tolist())
        arguments["generator"] = "torch.Generator().manual_seed(0)"
        lines = "\n".join(f"    {name}={code}," for name, code in arguments.items())
        return f"""rgba = pipeline(
{lines}
).images[0]
image = Image.new("RGB", rgba.size, "white")
image.paste(rgba, mask=rgba)"""

    def grid(self, size: Size) -> tuple[int, int]:
        """Rows and columns of tokens: twice as many as sides are multiples of :attr:`multiple`."""
        rows, columns = super().grid(size)
        return 2 * rows, 2 * columns

    def _map_shape(self, size: Size) -> tuple[int, int, int]:
        return self.transformer.config.in_channels, *self.grid(size)

    def _unshifted_sigmas(self, steps: int) -> np.ndarray:
        """The schedule of the model's authors, if the pipeline has one, interpolated to another number of steps."""
        sigmas = self.pipeline.config.sample_sigmas
        if sigmas is None:
            return np.linspace(1.0, 1 / steps, steps)
        return np.interp(np.arange(steps) / steps, np.linspace(0, 1, len(sigmas) + 1), [*sigmas, 0.0])

    def reference_side(self, size: Size) -> float:
        """``output_resolution`` of the pipeline: a reference is resized to about this side squared, in pixels."""
        self.validate_size(size)
        return math.sqrt(size[0] * size[1]) if self.reference_size is None else float(self.reference_size)

    def reference_area(self, size: Size) -> float:
        return self.reference_side(size) ** 2

    def encode(
        self,
        prompts: Sequence[str],
        max_sequence_length: int,
        references: Sequence[References] | None = None,
        sizes: Sequence[Sequence[Size]] = (),
        *,
        guidance: float | None = None,
    ) -> Encoded:
        images = self.prepare_references(prompts, references, sizes)
        texts = self._truncated(self.pipeline.processor.tokenizer, prompts, max_sequence_length)
        guided = guidance is None or self.family_spec.passes_per_step(guidance) > 1
        if self.edits:
            return self._encode(texts, images, sizes, self.cached, guided=guided)
        encoded = self._encode(texts, images, [[None]] * len(prompts), self.cached, guided=guided)
        rows = [
            {**row, INSTRUCTION: torch.tensor(list(text.encode()), dtype=torch.uint8)}
            for row, text in zip(encoded.rows, texts, strict=True)
        ]
        return Encoded(rows, self.device)

    def with_references(self, encoded: Encoded, references: Sequence[Sequence[Image]], size: Size) -> Encoded:
        """See :meth:`Policy.with_references`. The text encoder reads each prompt again, with its references."""
        texts = [bytes(row[INSTRUCTION].tolist()).decode() for row in encoded.rows]
        guided = any("negative_prompt_embeds" in row for row in encoded.rows)
        of_size = self._encode(texts, references, [[size]] * len(texts), Encodings().rows, guided=guided)
        rows = [{**row, INSTRUCTION: old[INSTRUCTION]} for row, old in zip(of_size.rows, encoded.rows, strict=True)]
        return Encoded(rows, self.device)

    def _encode(
        self,
        texts: Sequence[str],
        images: Sequence[Sequence[Image]],
        sizes: Sequence[Sequence[Size | None]],
        cached: Cached,
        *,
        guided: bool,
    ) -> Encoded:
        """Encode texts and references.

        Args:
            sizes: of each prompt's generated images. None = tensors without references, valid for all sizes.
            cached: encodes inputs that are not in the cache, like :meth:`cached`.
        """
        digests = [[picture_digest(image) for image in row] for row in images]
        parts = [self._prompt_embeds("prompt_embeds", texts, images, digests, sizes, cached)]
        if guided:
            negatives = [NEGATIVE] * len(texts)
            parts.append(self._prompt_embeds("negative_prompt_embeds", negatives, images, digests, sizes, cached))
        sized = [[size for size in row if size is not None] for row in sizes]
        parts.append(self._references(images, digests, sized, cached))
        none = torch.empty(0, self.vae.config.z_dim, dtype=self.vae.dtype)
        for row, of_row in zip(parts[-1], sized, strict=True):
            # prompts without references may be in one batch with others
            for name in (sized_name("image_latents", size) for size in of_row):
                row.setdefault(name, none)
        return Encoded([dict(ChainMap(*row)) for row in zip(*parts, strict=True)], self.device)

    def _prompt_embeds(
        self,
        name: str,
        texts: Sequence[str],
        images: Sequence[Sequence[Image]],
        digests: Sequence[Sequence[str]],
        sizes: Sequence[Sequence[Size | None]],
        cached: Cached,
    ) -> list[Tensors]:
        """Hidden states of Qwen3-VL for each prompt's text and images (tokens, d), and their parts."""
        cases = [(row, size) for row, of_row in enumerate(sizes) for size in dict.fromkeys(of_row)]
        resized_sizes = [
            [] if size is None else [resized(image, self.reference_area(size)) for image in images[row]]
            for row, size in cases
        ]

        def encode(number: int) -> Tensors:
            self.validate_encoders()
            row, processor = cases[number][0], self.pipeline.image_processor
            shapes = resized_sizes[number]
            pictures = [processor.resize(image, *shape) for image, shape in zip(images[row], shapes, strict=True)]
            with torch.no_grad():
                embeds, _, slots = self.pipeline.encode_prompt([texts[row]], pictures or None, self.device)
            return {"prompt_embeds": embeds[0], "parts": self._parts_of_text(slots[0].tolist(), shapes)}

        inputs = [["text", texts[row], digests[row], resized_sizes[n]] for n, (row, _) in enumerate(cases)]
        rows: list[Tensors] = [{} for _ in texts]
        for (row, size), tensors in zip(cases, cached(inputs, encode), strict=True):
            key = name if size is None else sized_name(name, size)
            rows[row] |= {key: tensors["prompt_embeds"], shapes_of(key): tensors["parts"]}
        return rows

    def _parts_of_text(self, slots: Sequence[bool], shapes: Sequence[Size]) -> torch.Tensor:
        """The parts of a text, in order, (parts, 2): (tokens, 0) of words, or rows and columns of latents of an image.

        Args:
            slots: whether each token of the text encoder is one of an image.
            shapes: height and width of each image in pixels.

        Raises:
            DataError: if the processor of the text encoder resized an image.
        """
        runs = [(is_image, len(list(tokens))) for is_image, tokens in groupby(slots)]
        grids = [self.grid(shape) for shape in shapes]
        if [length for is_image, length in runs if is_image] != [math.prod(grid) // SLOT for grid in grids]:
            limits = self.pipeline.processor.image_processor.size
            raise DataError(
                f"reference images of {', '.join(f'{width} x {height}' for height, width in shapes)} px: the image "
                f"processor of Qwen3-VL accepts {limits['shortest_edge']} to {limits['longest_edge']} pixels; choose "
                "another reference_size, for example 512"
            )
        images = iter(grids)
        return torch.tensor([next(images) if is_image else (length, 0) for is_image, length in runs])

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        cond = self._predict(latents, sigma, condition, "prompt_embeds", size)
        if self.family_spec.passes_per_step(guidance) == 1:
            return cond
        uncond = self._predict(latents, sigma, condition, "negative_prompt_embeds", size)
        return uncond + guidance * (cond - uncond)

    def _predict(
        self, latents: torch.Tensor, sigma: float, condition: Condition, name: str, size: Size
    ) -> torch.Tensor:
        """Velocity of each row in fp32. One pass per group of rows with equal parts of the text."""
        text = name if name in condition.tensors else sized_name(name, size)
        groups = group_by_shapes(condition.tensors[shapes_of(text)])
        velocities = [
            self._group_pass(latents[rows], sigma, condition, text, rows, parts, size) for parts, rows in groups.items()
        ]
        return ungroup(velocities, groups.values())

    def _group_pass(
        self,
        latents: torch.Tensor,
        sigma: float,
        condition: Condition,
        text: str,
        rows: Sequence[int],
        parts: Sequence[tuple[int, int]],
        size: Size,
    ) -> torch.Tensor:
        """One transformer pass over the rows of a group.

        Args:
            text: name of the tensor of prompt embeddings.
            parts: of each text (:meth:`_parts_of_text`).
        """
        dtype, image, references = self.transformer.dtype, self.grid(size), [part for part in parts if part[1]]
        tokens = latents.to(dtype)
        if references:
            reference = condition.tensors[sized_name("image_latents", size)]
            tokens = torch.cat([reference[rows, : sum(map(math.prod, references))].to(dtype), tokens], dim=1)
        slots = [columns > 0 for count, columns in parts for _ in range(count * columns // SLOT or count)]
        mask = torch.tensor([slots + [True] * (math.prod(image) // SLOT)] * len(rows))
        velocity: torch.Tensor = self.transformer(
            hidden_states=tokens,
            timestep=torch.full((len(rows),), sigma, device=self.device, dtype=dtype),
            encoder_hidden_states=condition.tensors[text][rows, : len(slots)],
            img_shapes=[[(1, *shape) for shape in (*references, image)]] * len(rows),
            # `paco plan` runs passes on the meta device, whose tensors have no values.
            img_mask=mask if self.device == "meta" else mask.to(self.device),
            return_dict=False,
            **self._cache_arguments(condition, (text, *rows)),
        )[0]
        return velocity[:, -latents.shape[1] :].float()

    def _cache_arguments(self, condition: Condition, key: Hashable) -> dict[str, Any]:
        """Arguments of a pass that stores or reuses the keys and values of text and references; none in training."""
        if not self._reuses or torch.is_grad_enabled() or not self.transformer.config.causal_condition:
            return {}
        mode = "cached" if key in condition.reused else "extract"
        new = QwenImage21KVCache(len(self.transformer.transformer_blocks))
        return {"kv_cache": condition.reused.setdefault(key, new), "kv_cache_mode": mode}

    def _maps(self, pixels: torch.Tensor) -> torch.Tensor:
        """Encode pixels (N, 3, H, W) in -1..1, without transparency."""
        return super()._maps(torch.cat([pixels, torch.ones_like(pixels[:, :1])], dim=1))
