"""FLUX.2 [klein] as a policy: a diffusers ``Flux2KleinPipeline``, which generates and edits.

Qwen3 reads the prompt in its chat template. In every pass, the latents of up to four reference images follow the noisy
latents, each with a separate time id. The base model uses classifier-free guidance against an empty prompt. The
distilled model has no guidance, as in the pipeline.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

from paco_core.adapters.names import Vocabulary
from paco_core.io.files import DataError
from paco_core.io.pictures import picture_digest
from paco_core.policies.base import References, Size, sized_name
from paco_core.policies.encoded import Condition, Encoded, group_by_shapes, shapes_of, ungroup
from paco_core.policies.encodings import Cached, Encodings, Tensors
from paco_core.policies.flux_names import FLUX2, original_names
from paco_core.policies.pipeline_policy import PipelinePolicy

if TYPE_CHECKING:
    from PIL.Image import Image

NEGATIVE = ""  # negative prompt of the pipeline


class Flux2KleinPolicy(PipelinePolicy):
    """Text to image, or editing one to four references. A guided step of the base model needs two passes, else one."""

    family = "flux2_klein"
    max_area: ClassVar[int] = 1024 * 1024  # pixels of a reference: the pipeline scales larger ones down
    #: Pixels of a square reference: 64 x 64 is the minimum of the pipeline; + 2, because it rounds down.
    min_area: ClassVar[int] = 64 * 64 + 2

    def layer_vocabularies(self) -> Sequence[Vocabulary]:
        return (original_names(self.transformer, FLUX2),)

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        image = "\n    image=pictures," if self.edits else ""
        return self._example(size, steps, guidance, max_sequence_length, image)

    def panel_example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        return self._example(size, steps, guidance, max_sequence_length, "\n    image=pictures or None,")

    def _example(self, size: Size, steps: int, guidance: float, max_sequence_length: int, image: str) -> str:
        """:meth:`example`, with the code ``image`` of the argument for reference images."""
        before = f"""pictures = []
for reference in picture if isinstance(picture, list) else [picture]:  # at most as many pixels as in training
    most = max({self.reference_area(size)}, round({self.min_area} * max(reference.size) / min(reference.size)))
    pictures.append(pipeline.image_processor._resize_if_exceeds_area(reference.convert("RGB"), most))
"""
        return f"""{before if image else ""}image = pipeline(
    prompt=prompt,{image}
    height={size[0]},
    width={size[1]},
    num_inference_steps={steps},{self._guidance_argument(guidance)}
    max_sequence_length={max_sequence_length},
    generator=torch.Generator().manual_seed(0),
).images[0]"""

    def _guidance_argument(self, guidance: float) -> str:
        """The line of :meth:`example` that passes the guidance to the call of the pipeline."""
        return f"\n    guidance_scale={guidance:g},"

    def passes(self, guidance: float) -> int:
        """Transformer passes per step. Distilled weights have no guidance."""
        return 1 if self.pipeline.config.is_distilled else self.family_spec.passes_per_step(guidance)

    def reference_area(self, size: Size, picture: Image | None = None) -> int:
        """Maximum number of pixels of a reference: those of the generated image, or ``reference_size`` squared.

        Args:
            size: size of the generated image.
            picture: the reference. If it is long, its shorter side keeps the minimum of the pipeline.
        """
        self.validate_size(size)
        area = min(size[0] * size[1] if self.reference_size is None else self.reference_size**2, self.max_area)
        ratio = 1.0 if picture is None else max(picture.size) / min(picture.size)
        return max(area, round(self.min_area * ratio))

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
        self.record_chat_truncations(prompts, max_sequence_length)
        parts = [self._texts("prompt_embeds", prompts, max_sequence_length)]
        if guidance is None or self.passes(guidance) > 1:
            parts.append(self._texts("negative_prompt_embeds", [NEGATIVE] * len(prompts), max_sequence_length))
        if self.edits:
            parts.append(self._references(images, sizes, self.cached))
        return Encoded([dict(ChainMap(*row)) for row in zip(*parts, strict=True)], self.device)

    def with_references(self, encoded: Encoded, references: Sequence[Sequence[Image]], size: Size) -> Encoded:
        latents = self._references(references, [[size]] * len(references), Encodings().rows)
        name = sized_name("image_latents", size)
        rows = [_append_references(row, appended, name) for row, appended in zip(encoded.rows, latents, strict=True)]
        return Encoded(rows, self.device)

    def _texts(self, name: str, texts: Sequence[str], length: int) -> list[Tensors]:
        """Three concatenated layers of Qwen3 (length, 3 d), with padding, because the pipeline attends to it."""

        def encode(row: int) -> Tensors:
            self.validate_encoders()
            with torch.no_grad():
                embeds, _ = self.pipeline.encode_prompt(texts[row], device=self.device, max_sequence_length=length)
            return {"prompt_embeds": embeds[0]}

        rows = self.cached([["text", text, length] for text in texts], encode)
        return [{name: tensors["prompt_embeds"]} for tensors in rows]

    def _references(
        self,
        images: Sequence[Sequence[Image]],
        sizes: Sequence[Sequence[Size]],
        cached: Cached,
    ) -> list[Tensors]:
        """Concatenated packed latents (tokens, channels) of the images of each prompt, and their shapes, by size.

        Args:
            cached: encodes inputs that are not in the cache, like :meth:`cached`.
        """
        processor = self.pipeline.image_processor
        digests = [[picture_digest(image) for image in row] for row in images]
        cases = [(row, size) for row, of_row in enumerate(sizes) for size in dict.fromkeys(of_row)]
        requests = [
            (index, row, self.reference_area(size, image))
            for row, size in cases
            for index, image in enumerate(images[row])
        ]

        def latents(number: int) -> Tensors:
            index, row, area = requests[number]
            image = images[row][index]
            with torch.no_grad():
                resized = processor._resize_if_exceeds_area(image, area)
                pixels = self._reference_pixels(image, resized, self._resize_mode(len(images[row])))
                maps = self._maps(pixels.to(self.device, self.vae.dtype))
            return {"tokens": self._packed(maps)[0], "shape": torch.tensor(maps.shape[2:])}

        keys = [
            ["reference", digests[row][index], area, self._resize_mode(len(images[row]))]
            for index, row, area in requests
        ]
        encoded = iter(cached(keys, latents))
        rows: list[Tensors] = [{} for _ in sizes]
        for row, size in cases:
            parts, name = [next(encoded) for _ in images[row]], sized_name("image_latents", size)
            none = {
                "tokens": torch.empty(0, self.transformer.config.in_channels, dtype=self.vae.dtype),
                "shape": torch.empty(0, 2),
            }
            rows[row][name] = torch.cat([part["tokens"] for part in parts or [none]])
            rows[row][shapes_of(name)] = torch.cat([part["shape"].reshape(-1, 2) for part in parts or [none]]).long()
        return rows

    def _resize_mode(self, count: int) -> str:  # noqa: ARG002
        """How the pipeline brings a reference to a multiple of tokens, by the number of references of a prompt."""
        return "crop"

    def _reference_pixels(self, image: Image, resized: Image, mode: str) -> torch.Tensor:
        """Pixels (1, 3, H, W) in -1..1 of a reference image.

        Args:
            resized: the image, scaled down to the maximum number of pixels.
            mode: see :meth:`_resize_mode`.

        Raises:
            DataError: if the pipeline does not accept the image.
        """
        processor = self.pipeline.image_processor
        try:
            processor.check_image_input(image)
        except ValueError as error:
            raise DataError(f"a reference image is not supported: {error}") from None
        width, height = (side // self.multiple * self.multiple for side in resized.size)
        pixels: torch.Tensor = processor.preprocess(resized, height=height, width=width, resize_mode=mode)
        return pixels

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        cond = self._predict(latents, sigma, condition, "prompt_embeds", size)
        if self.passes(guidance) == 1:
            return cond
        uncond = self._predict(latents, sigma, condition, "negative_prompt_embeds", size)
        return uncond + guidance * (cond - uncond)

    def _predict(
        self, latents: torch.Tensor, sigma: float, condition: Condition, name: str, size: Size
    ) -> torch.Tensor:
        """Velocity of each row in fp32 for the prompt embeddings ``name``. One pass per group of reference shapes."""
        prompt_embeds, reference = condition.tensors[name], sized_name("image_latents", size)
        if not self.edits and reference not in condition.tensors:
            return self._pass(latents, sigma, prompt_embeds, size, None, [])
        groups = group_by_shapes(condition.tensors[shapes_of(reference)])
        velocities = []
        for shapes, rows in groups.items():
            tokens = condition.tensors[reference][rows, : sum(height * width for height, width in shapes)]
            images = tokens if shapes else None
            velocities.append(self._pass(latents[rows], sigma, prompt_embeds[rows], size, images, shapes))
        return ungroup(velocities, groups.values())

    def _pass(
        self,
        latents: torch.Tensor,
        sigma: float,
        prompt_embeds: torch.Tensor,
        size: Size,
        reference: torch.Tensor | None,
        shapes: Sequence[Size],
    ) -> torch.Tensor:
        """One transformer pass over image and reference tokens."""
        pipeline, dtype = self.pipeline, self.transformer.dtype
        tokens, ids = latents.to(dtype), pipeline._prepare_latent_ids(torch.empty(1, 1, *self.grid(size)))[0]
        if reference is not None:
            tokens = torch.cat([tokens, reference.to(dtype)], dim=1)
            parts = [torch.empty(1, 1, height, width) for height, width in shapes]
            ids = torch.cat([ids, pipeline._prepare_image_ids(parts)[0]])
        velocity: torch.Tensor = self.transformer(
            hidden_states=tokens,
            timestep=torch.full((len(latents),), sigma, device=self.device, dtype=torch.float32),
            guidance=None,
            encoder_hidden_states=prompt_embeds,
            txt_ids=pipeline._prepare_text_ids(prompt_embeds[:1])[0].to(self.device),
            img_ids=ids.to(self.device),
            return_dict=False,
        )[0]
        return velocity[:, : latents.shape[1]].float()

    def _shift(self, tokens: int, steps: int) -> float:
        shift: float = compute_empirical_mu(tokens, steps)
        return shift

    def _map_shape(self, size: Size) -> tuple[int, int, int]:
        return self.transformer.config.in_channels, *self.grid(size)

    def _packed(self, maps: torch.Tensor) -> torch.Tensor:
        packed: torch.Tensor = self.pipeline._pack_latents(maps)
        return packed

    def _unpacked(self, latents: torch.Tensor, size: Size) -> torch.Tensor:
        maps = latents.transpose(1, 2).unflatten(2, self.grid(size))
        statistics, epsilon = self.vae.bn, self.vae.config.batch_norm_eps
        mean, variance = (v.view(1, -1, 1, 1).to(maps) for v in (statistics.running_mean, statistics.running_var))
        unpatched: torch.Tensor = self.pipeline._unpatchify_latents(maps * (variance + epsilon).sqrt() + mean)
        return unpatched

    def _maps(self, pixels: torch.Tensor) -> torch.Tensor:
        maps: torch.Tensor = self.pipeline._encode_vae_image(pixels, generator=None)
        return maps

    def _pixels(self, maps: torch.Tensor) -> torch.Tensor:
        pixels: torch.Tensor = self.vae.decode(maps.to(self.vae.dtype), return_dict=False)[0]
        return pixels


def _append_references(
    row: Mapping[str, torch.Tensor], appended: Tensors, reference: str
) -> Mapping[str, torch.Tensor]:
    """An encoded prompt with additional reference tokens and their shapes."""
    names = (reference, shapes_of(reference))
    return {
        **row,
        **{name: torch.cat([row[name], appended[name]]) if name in row else appended[name] for name in names},
    }
