"""Qwen-Image-Edit-Plus (2509, 2511) as a policy: a plain diffusers ``QwenImageEditPlusPipeline``.

As Qwen-Image-Edit, but with one to three references, each in its own proportions: the text encoder sees each at about
384 x 384 pixels, marked "Picture 1:" and so on, whatever size its latents have, and the latents stand one after
another behind the noisy ones. 2511 differs in its transformer's configuration alone (``zero_cond_t``: tokens of the
references are modulated as at time 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import CONDITION_IMAGE_SIZE, calculate_dimensions

from paco_core.policies.base import Size, sized
from paco_core.policies.encoded import Condition, by_shapes, in_order, mask_of, shapes_of
from paco_core.policies.encodings import Tensors
from paco_core.policies.qwen_image_edit import NEGATIVE, QwenImageEditPolicy

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST = 32  # pixels of a side; of a very long picture the pipeline's own rounding makes 0


class QwenImageEditPlusPolicy(QwenImageEditPolicy):
    """Editing one to three references with true guidance."""

    family = "qwen_image_edit_plus"

    def example(self, size: Size, steps: int, guidance: float, max_sequence_length: int) -> str:  # noqa: ARG002
        return f"""# Pictures are brought to as many pixels as in training; by the pipeline alone to a million.
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus

plus.VAE_IMAGE_SIZE = {self.reference_area(size)}
image = pipeline(
    prompt=prompt,
    image=picture,
    negative_prompt={NEGATIVE!r},
    true_cfg_scale={guidance:g},
    height={size[0]},
    width={size[1]},
    num_inference_steps={steps},
    generator=torch.Generator().manual_seed(0),
).images[0]"""

    def reference_area(self, size: Size) -> int:
        """Pixels that a reference is brought to, in its own proportions."""
        self.check_size(size)
        return size[0] * size[1] if self.reference_size is None else self.reference_size**2

    def seen_at(self, picture: Image, size: Size) -> Size:  # noqa: ARG002
        return _brought(picture, CONDITION_IMAGE_SIZE)

    def seen(self, pictures: Sequence[Image], size: Size) -> Any:
        """A list: the template gives each picture a number."""
        return [self.pipeline.image_processor.resize(one, *self.seen_at(one, size)) for one in pictures]

    def _references(
        self, pictures: Sequence[Sequence[Image]], names: Sequence[Sequence[str]], sizes: Sequence[Sequence[Size]]
    ) -> list[Tensors]:
        """Packed latents (tokens, channels) of each prompt's pictures one after another, and their shapes, by size."""
        cases = [(row, size) for row, own in enumerate(sizes) for size in dict.fromkeys(own)]
        asked = [
            (names[row][place], picture, _brought(picture, self.reference_area(size)))
            for row, size in cases
            for place, picture in enumerate(pictures[row])
        ]

        def encode(case: int) -> Tensors:
            with torch.no_grad():
                return {"tensor": self.latents_of(*asked[case][1:])}

        encoded = iter(self.cached([["reference", name, brought] for name, _, brought in asked], encode))
        shapes = iter(torch.tensor(self.grid(brought)) for _, _, brought in asked)
        found: list[Tensors] = [{} for _ in sizes]
        for row, size in cases:
            name = sized("reference", size)
            found[row][name] = torch.cat([next(encoded)["tensor"] for _ in pictures[row]])
            found[row][shapes_of(name)] = torch.stack([next(shapes) for _ in pictures[row]])
        return found

    def _predict(
        self, latents: torch.Tensor, sigma: float, condition: Condition, name: str, size: Size
    ) -> torch.Tensor:
        """As of one reference; a pass for each shape of references."""
        reference, text = sized("reference", size), sized(name, size)
        words = {n: condition.tensors[n] for n in (text, mask_of(text)) if n in condition.tensors}
        groups, found = by_shapes(condition.tensors[shapes_of(reference)]), []
        for shapes, rows in groups.items():
            given = condition.tensors[reference][rows, : sum(high * wide for high, wide in shapes)]
            tokens = torch.cat([latents[rows].to(given.dtype), given], dim=1)
            own = Condition({n: tensor[rows] for n, tensor in words.items()})
            frames = [(1, *self.grid(size)), *((1, *shape) for shape in shapes)]
            found.append(self._pass(tokens, sigma, own, text, frames)[:, : latents.shape[1]])
        return in_order(found, groups.values())


def _brought(picture: Image, area: int) -> Size:
    """Height and width of a picture of about so many pixels, as the pipeline computes them."""
    width, height = calculate_dimensions(area, picture.width / picture.height)
    return max(LEAST, height), max(LEAST, width)
