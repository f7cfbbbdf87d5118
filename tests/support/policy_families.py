"""Every family of policies with a tiny model, and how its plain diffusers pipeline is asked for the same images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus
from PIL import Image
from torch.nn.functional import pixel_shuffle

from paco_core.grpo.rollout import Sampling, rollout
from paco_core.io.pictures import normalize_image
from paco_core.policies import base, families
from paco_core.policies.base import NoiseKey, Size
from paco_core.policies.encoded import Encoded
from tests.support.tiny import TEXT_LENGTH, tiny_flux, tiny_kontext
from tests.support.tiny_pipelines import (
    flux2_klein,
    flux3_klein,
    qwen_image,
    qwen_image_21,
    qwen_image_edit,
    qwen_image_edit_plus,
    z_image,
)

PROMPTS = ["a red cat on the beach", "The colour", "No. The animal differs: the first shows cat and the second frog."]
KEYS = [NoiseKey(f"p{n}", n, 3) for n in range(3)]
STEPS, GUIDANCE = 3, 3.5
QWEN = "diffusers.pipelines.qwenimage.pipeline_qwenimage_edit"


def references(count: int = 3) -> list[Image.Image]:
    rng = np.random.default_rng(4)
    small = [Image.fromarray(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8)) for _ in range(count)]
    return [image.resize((64, 64), Image.Resampling.NEAREST) for image in small]


def arrays(images: Sequence[Image.Image]) -> np.ndarray:
    return np.stack([np.asarray(normalize_image(image), dtype=int) for image in images])


@dataclass(frozen=True)
class Family:
    """A family: ``length`` is ``max_sequence_length``, ``one_by_one`` pipelines paint one image a call."""

    name: str
    build: Callable[[Path], Path]
    version: str = ""
    edits: bool = True
    one_by_one: bool = False
    length: int = TEXT_LENGTH
    adapter_scale: float = 0.3  # of the weights that :meth:`train_a_little` draws

    @property
    def encoders(self) -> list[str]:
        """Methods of the pipeline that an encoding runs, or of its parts."""
        if self.name == "flux3_klein":
            return ["text_encoder.forward", "vae.encode"]
        return ["encode_prompt", *(["_encode_vae_image"] if self.edits else [])]

    def plain(self, folder: Path) -> Any:
        """The pipeline of diffusers, without paco."""
        if self.name == "flux3_klein":
            return plain_flux3(folder)
        pipeline = getattr(diffusers, families.FAMILIES[self.name].pipeline).from_pretrained(folder)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline

    def load(self, folder: Path, cache: Path | None = None, reference_size: int | None = None) -> Any:
        options = {"task": "edits"} if self.edits else {}
        return base.load_policy(
            self.name,
            str(folder),
            "cpu",
            "float32",
            cache=cache,
            reference_size=reference_size,
            **options,  # type: ignore[arg-type]
        )

    def reference_arguments(self, size: Size, rows: int) -> tuple[Any, ...]:
        return (references()[:rows], [[size]] * rows) if self.edits else ()

    def encode(self, policy: Any, size: Size, guidance: float | None = None, rows: int = 3) -> Encoded:
        reference_args = self.reference_arguments(size, rows)
        encoded: Encoded = policy.encode(PROMPTS[:rows], self.length, *reference_args, guidance=guidance)
        return encoded

    def sample(self, policy: Any, size: Size, guidance: float = GUIDANCE, rows: int = 3) -> np.ndarray:
        sampling = Sampling.for_policy(policy, size, STEPS, guidance)
        trajectory = rollout(policy, self.encode(policy, size, rows=rows), range(rows), KEYS[:rows], sampling)
        return arrays(policy.decode(trajectory.latents, size))

    def train_a_little(self, policy: Any) -> None:
        """Give the adapter weights that show: its B starts at zero."""
        generator = torch.Generator().manual_seed(5)
        for parameter in policy.trainable().values():
            parameter.data += torch.randn(parameter.shape, generator=generator) * self.adapter_scale

    def references_as_large(self, pipeline: Any, size: Size, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """Let the plain pipeline bring references to the size of the image, not to a million pixels."""
        if self.name == "flux_kontext":
            resized = [pipeline.image_processor.resize(image, *size) for image in references()]
            return {"image": resized, "_auto_resize": False}
        if self.name == "qwen_image_21":
            return {"output_resolution": math.sqrt(size[0] * size[1])}
        monkeypatch.setattr(f"{QWEN}.calculate_dimensions", lambda _area, _ratio: (size[1], size[0], None))
        monkeypatch.setattr(plus, "VAE_IMAGE_SIZE", size[0] * size[1])
        return {}

    def by_pipeline(
        self, pipeline: Any, noise: torch.Tensor, size: Size, guidance: float, **call_options: Any
    ) -> np.ndarray:
        """Images (N, H, W, 3) of the plain pipeline; ``call_options`` are arguments of its call."""
        arguments: dict[str, Any] = {
            "prompt": list(PROMPTS),  # ZImagePipeline writes into it
            "latents": noise,
            **({"image": references()} if self.edits else {}),
        }
        arguments |= {"height": size[0], "width": size[1], "num_inference_steps": STEPS, **call_options}
        if self.name.startswith("qwen"):
            arguments |= {"true_cfg_scale": guidance, "negative_prompt": [" "] * len(arguments["prompt"])}
        else:
            arguments |= {"guidance_scale": guidance, "max_sequence_length": self.length}
        if self.name == "flux_kontext":
            arguments |= {"max_area": size[0] * size[1]}
        if self.name == "qwen_image":
            arguments |= {"max_sequence_length": self.length}
        if self.name == "flux3_klein":
            del arguments["guidance_scale"]
            pipeline.update_components(guider=pipeline.guider.new(guidance_scale=guidance))
        if self.name in ("flux2_klein", "flux3_klein"):  # they take noise as maps
            arguments["latents"] = noise.transpose(1, 2).unflatten(2, (size[0] // 16, size[1] // 16))
        if self.name == "z_image":  # as well, and its guidance counts from 0
            grid = noise.transpose(1, 2).unflatten(2, (size[0] // 16, size[1] // 16))
            arguments |= {"latents": pixel_shuffle(grid, 2), "guidance_scale": guidance - 1}
        if not self.one_by_one:
            return arrays(pipeline(**arguments).images)
        pictures = [{"image": image} for image in arguments["image"]] if self.edits else [{}] * len(noise)
        rows = zip(arguments["prompt"], pictures, arguments["latents"].split(1), strict=True)
        inputs = [{"prompt": prompt, "latents": latents, **picture} for prompt, picture, latents in rows]
        negative = {"negative_prompt": " "} if "negative_prompt" in arguments else {}
        return arrays([pipeline(**{**arguments, **row, **negative}).images[0] for row in inputs])


def plain_flux3(folder: Path) -> Any:
    """As the documentation of diffusers loads a modular pipeline and pops its upsampler."""
    blocks = diffusers.Flux3AutoBlocks()
    blocks.sub_blocks.pop("prompt_upsampler")
    pipeline = blocks.init_pipeline(str(folder))
    pipeline.load_components()
    return pipeline


def loud_qwen_image(folder: Path) -> Path:
    """With louder weights: as drawn, words hardly move an image."""
    from diffusers import QwenImageTransformer2DModel

    qwen_image(folder)
    transformer: Any = QwenImageTransformer2DModel.from_pretrained(folder / "transformer")
    for parameter in transformer.parameters():
        parameter.data *= 3 if parameter.ndim > 1 else 1
    transformer.save_pretrained(folder / "transformer")
    return folder


EDITORS = [
    Family("flux_kontext", tiny_kontext),
    Family("qwen_image_edit", qwen_image_edit),
    Family("qwen_image_edit_plus", qwen_image_edit_plus, "2509", one_by_one=True),
    Family("qwen_image_edit_plus", partial(qwen_image_edit_plus, zero_cond_t=True), "2511", one_by_one=True),
]
FAMILIES = [
    *EDITORS,
    Family("flux", tiny_flux, edits=False),
    Family("qwen_image", loud_qwen_image, edits=False, length=128),  # the template's tokens count, 60 of them
    Family("flux2_klein", flux2_klein, one_by_one=True, length=48, adapter_scale=0.1),
    Family("flux3_klein", flux3_klein, one_by_one=True, length=96, adapter_scale=0.1),
    Family("qwen_image_21", qwen_image_21, one_by_one=True, adapter_scale=0.1),
    Family("qwen_image_21", qwen_image_21, "sets", edits=False, one_by_one=True, adapter_scale=0.1),
    Family("z_image", z_image, edits=False, length=48, adapter_scale=0.1),
]


def build(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a family's model, its weights drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return family.build(tmp_path_factory.mktemp(family.name + family.version) / "model")
