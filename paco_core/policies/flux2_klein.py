"""FLUX.2 [klein] as a policy: a plain diffusers ``Flux2KleinPipeline``, which paints and edits.

A Qwen3 reads the prompt in its chat template. The latents of up to four reference pictures stand behind the noisy ones
in every pass, each at a time of its own. The base model's guidance is true classifier-free guidance against an empty
prompt; the distilled one has none, as in the pipeline.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

from paco_core.adapters.names import Vocabulary
from paco_core.io.files import DataError
from paco_core.io.pictures import picture_digest
from paco_core.policies.base import References, Size, sized
from paco_core.policies.cuts import cut_in_dialogue
from paco_core.policies.encoded import Condition, Encoded, by_shapes, in_order, shapes_of
from paco_core.policies.encodings import Encodings, Tensors
from paco_core.policies.flux_names import FLUX2, original_names
from paco_core.policies.pipeline_policy import PipelinePolicy

if TYPE_CHECKING:
    from PIL.Image import Image

NEGATIVE = ""  # the pipeline's own
MOST = 1024 * 1024  # pixels of a reference: the pipeline brings larger ones down
LEAST = 4098  # of a square one: the pipeline refuses sides below 64; two more than 64 x 64, as it rounds down


class Flux2KleinPolicy(PipelinePolicy):
    """Painting, or editing one to four references; two transformer passes a guided step of the base model, else one."""

    family = "flux2_klein"

    def other_names(self) -> Sequence[Vocabulary]:
        return (original_names(self.transformer, FLUX2),)

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        image = "\n    image=pictures," if self.edits else ""
        return self._example(size, steps, guidance, max_sequence_length, image)

    def panel_example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:
        return self._example(size, steps, guidance, max_sequence_length, "\n    image=pictures or None,")

    def _example(self, size: Size, steps: int, guidance: float, max_sequence_length: int, image: str) -> str:
        """:meth:`example`, with the argument that takes reference pictures."""
        before = f"""pictures = []
for one in picture if isinstance(picture, list) else [picture]:  # at most as many pixels as in training
    most = max({self.reference_area(size)}, round({LEAST} * max(one.size) / min(one.size)))
    pictures.append(pipeline.image_processor._resize_if_exceeds_area(one.convert("RGB"), most))
"""
        return f"""{before if image else ""}image = pipeline(
    prompt=prompt,{image}
    height={size[0]},
    width={size[1]},
    num_inference_steps={steps},
    guidance_scale={guidance:g},
    max_sequence_length={max_sequence_length},
    generator=torch.Generator().manual_seed(0),
).images[0]"""

    def passes(self, guidance: float) -> int:
        """Transformer passes of one prediction; distilled weights have no guidance."""
        return 1 if self.pipeline.config.is_distilled else self.known.passes_a_step(guidance)

    def reference_area(self, size: Size, picture: Image | None = None) -> int:
        """Pixels that a reference has at most, in its own proportions: the picture's, or ``reference_size`` squared.

        Args:
            picture: the reference; a long one keeps the sides that the pipeline takes.
        """
        self.check_size(size)
        area = min(size[0] * size[1] if self.reference_size is None else self.reference_size**2, MOST)
        longer = 1.0 if picture is None else max(picture.size) / min(picture.size)
        return max(area, round(LEAST * longer))

    def encode(
        self,
        prompts: Sequence[str],
        max_sequence_length: int,
        references: Sequence[References] | None = None,
        sizes: Sequence[Sequence[Size]] = (),
        *,
        guidance: float | None = None,
    ) -> Encoded:
        pictures = self.check_references(prompts, references, sizes)
        tokenizer = self.pipeline.tokenizer
        self.note_cuts(prompts, lambda prompt: cut_in_dialogue(tokenizer, prompt, max_sequence_length))
        parts = [self._texts("text", prompts, max_sequence_length)]
        if guidance is None or self.passes(guidance) > 1:
            parts.append(self._texts("negative", [NEGATIVE] * len(prompts), max_sequence_length))
        if self.edits:
            parts.append(self._references(pictures, sizes, self.cached))
        return Encoded([dict(ChainMap(*row)) for row in zip(*parts, strict=True)], self.device)

    def with_references(self, encoded: Encoded, references: Sequence[Sequence[Image]], size: Size) -> Encoded:
        found = self._references(references, [[size]] * len(references), Encodings().rows)
        name = sized("reference", size)
        return Encoded([_behind(row, more, name) for row, more in zip(encoded.rows, found, strict=True)], self.device)

    def _texts(self, name: str, texts: Sequence[str], length: int) -> list[Tensors]:
        """Three layers of the Qwen3 side by side (length, 3 d), padding included: the pipeline attends to it too."""

        def encode(row: int) -> Tensors:
            self.need_encoders()
            with torch.no_grad():
                words, _ = self.pipeline.encode_prompt(texts[row], device=self.device, max_sequence_length=length)
            return {"text": words[0]}

        found = self.cached([["text", text, length] for text in texts], encode)
        return [{name: tensors["text"]} for tensors in found]

    def _references(
        self,
        pictures: Sequence[Sequence[Image]],
        sizes: Sequence[Sequence[Size]],
        cached: Callable[[Sequence[object], Callable[[int], Tensors]], list[Tensors]],
    ) -> list[Tensors]:
        """Packed latents (tokens, channels) of each prompt's pictures one after another, and their shapes, by size.

        Args:
            cached: encodes what was not encoded before, as :meth:`cached`.
        """
        processor, pipeline = self.pipeline.image_processor, self.pipeline
        names = [[picture_digest(picture) for picture in row] for row in pictures]

        def pixels(picture: Image, area: int) -> torch.Tensor:
            brought = processor._resize_if_exceeds_area(picture, area)
            try:
                processor.check_image_input(picture)
            except ValueError as error:
                raise DataError(f"a reference picture: {error}") from None
            wide, high = (side // self.multiple * self.multiple for side in brought.size)
            found: torch.Tensor = processor.preprocess(brought, height=high, width=wide, resize_mode="crop")
            return found.to(self.device, self.vae.dtype)

        def latents(picture: Image, area: int) -> Tensors:
            with torch.no_grad():
                maps = pipeline._encode_vae_image(pixels(picture, area), generator=None)
            return {"tokens": self._packed(maps)[0], "shape": torch.tensor(maps.shape[2:])}

        cases = [(row, size) for row, own in enumerate(sizes) for size in dict.fromkeys(own)]
        asked = [(n, row, self.reference_area(size, one)) for row, size in cases for n, one in enumerate(pictures[row])]
        encoded = iter(
            cached(
                [["reference", names[row][n], area] for n, row, area in asked],
                lambda case: latents(pictures[asked[case][1]][asked[case][0]], asked[case][2]),
            )
        )
        found: list[Tensors] = [{} for _ in sizes]
        for row, size in cases:
            each, name = [next(encoded) for _ in pictures[row]], sized("reference", size)
            found[row][name] = torch.cat([one["tokens"] for one in each])
            found[row][shapes_of(name)] = torch.stack([one["shape"] for one in each])
        return found

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        asked = self._predict(latents, sigma, condition, "text", size)
        if self.passes(guidance) == 1:
            return asked
        unasked = self._predict(latents, sigma, condition, "negative", size)
        return unasked + guidance * (asked - unasked)

    def _predict(
        self, latents: torch.Tensor, sigma: float, condition: Condition, name: str, size: Size
    ) -> torch.Tensor:
        """The prompt's velocity, or the empty one's, of each row; fp32; a pass for each shape of references."""
        words, reference = condition.tensors[name], sized("reference", size)
        if not self.edits and reference not in condition.tensors:
            return self._pass(latents, sigma, words, size, None, [])
        groups = by_shapes(condition.tensors[shapes_of(reference)])
        found = []
        for shapes, rows in groups.items():
            tokens = condition.tensors[reference][rows, : sum(high * wide for high, wide in shapes)]
            found.append(self._pass(latents[rows], sigma, words[rows], size, tokens, shapes))
        return in_order(found, groups.values())

    def _pass(
        self,
        latents: torch.Tensor,
        sigma: float,
        words: torch.Tensor,
        size: Size,
        reference: torch.Tensor | None,
        shapes: Sequence[Size],
    ) -> torch.Tensor:
        """One transformer pass over picture and reference tokens."""
        pipeline, dtype = self.pipeline, self.transformer.dtype
        tokens, ids = latents.to(dtype), pipeline._prepare_latent_ids(torch.empty(1, 1, *self.grid(size)))[0]
        if reference is not None:
            tokens = torch.cat([tokens, reference.to(dtype)], dim=1)
            parts = [torch.empty(1, 1, high, wide) for high, wide in shapes]
            ids = torch.cat([ids, pipeline._prepare_image_ids(parts)[0]])
        predicted: torch.Tensor = self.transformer(
            hidden_states=tokens,
            timestep=torch.full((len(latents),), sigma, device=self.device, dtype=torch.float32),
            guidance=None,
            encoder_hidden_states=words,
            txt_ids=pipeline._prepare_text_ids(words[:1])[0].to(self.device),
            img_ids=ids.to(self.device),
            return_dict=False,
        )[0]
        return predicted[:, : latents.shape[1]].float()

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


def _behind(row: Mapping[str, torch.Tensor], more: Tensors, reference: str) -> Mapping[str, torch.Tensor]:
    """An encoded prompt with the tokens of more reference pictures behind those that it has, and their shapes."""
    names = (reference, shapes_of(reference))
    return {**row, **{name: torch.cat([row[name], more[name]]) if name in row else more[name] for name in names}}
