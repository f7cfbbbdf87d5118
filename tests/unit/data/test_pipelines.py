"""Grids from any diffusers text-to-image class: prompts encoded once and ahead, pictures as the pipeline's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paco_core.data.grids.text_to_image import Request, TextToImage
from paco_core.io.files import DataError
from tests.support.tiny_pipelines import FAMILIES, TEXT_LENGTH
from tests.unit.data.test_grids import params

SIDE = 32
STEPS = 2


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return FAMILIES[request.param](tmp_path_factory.mktemp(request.param) / "model")


def own_picture(folder: Path, prompt: str, seed: int) -> bytes:
    """What the class paints when it is used as its documentation says."""
    from diffusers import DiffusionPipeline

    pipeline: Any = DiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    noise = torch.Generator().manual_seed(seed)
    call = {"height": SIDE, "width": SIDE, "num_inference_steps": STEPS, "generator": noise, "guidance_scale": 3.5}
    if not type(pipeline).__name__.startswith("StableDiffusion"):
        call["max_sequence_length"] = TEXT_LENGTH
    if type(pipeline).__name__.startswith("PixArt"):
        call["use_resolution_binning"] = False
    return bytes(pipeline(prompt, **call).images[0].tobytes())


def test_any_class_paints_as_it_does_itself_with_its_prompts_encoded_once(family: Path) -> None:
    requests = [
        Request(text, SIDE, SIDE, seed) for text in ("a red cat", "one blue frog in the snow") for seed in (3, 4)
    ]
    generator = TextToImage.load(family, params(family))
    assert type(generator.pipeline).__name__ == family.parent.name.rstrip("0")
    calls: list[int] = []
    generator.pipeline.text_encoder.register_forward_hook(lambda *_: calls.append(1))
    assert generator.encode(requests) == 2
    encoded = len(calls)
    assert generator.pipeline.text_encoder is None
    for prompt in {request.prompt for request in requests}:
        same = [request for request in requests if request.prompt == prompt]
        painted = generator.paint(same, 2)
        assert painted[0].tobytes() != painted[1].tobytes()
        alone = generator.paint(same[1:], 2)
        assert alone[0].tobytes() == painted[1].tobytes(), "a picture does not depend on its neighbours"
    assert len(calls) == encoded <= 4, "two prompts, and a negative one with guidance"
    (single,) = generator.paint(requests[:1], 1)
    assert single.tobytes() == own_picture(family, requests[0].prompt, 3)


def test_prompts_of_unequal_embeddings_go_into_batches_of_their_own(family: Path) -> None:
    short, long = (Request(text, SIDE, SIDE, 0) for text in ("a cat", "a red cat with a scarf in the snow at night"))
    generator = TextToImage.load(family, params(family, max_sequence_length=200))
    generator.encode([short, long])
    by_length = "Qwen" in type(generator.pipeline).__name__
    assert (generator.kind(short) != generator.kind(long)) == by_length
    if by_length:
        with pytest.raises(ValueError, match="2 requests of 2 kinds"):
            generator.paint([short, long], 2)
    else:
        assert len(generator.paint([short, long], 2)) == 2


def test_a_pipeline_that_paints_from_pictures_is_refused(tmp_path: Path) -> None:
    from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel

    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "block_out_channels": (8,)}
    DDIMPipeline(UNet2DModel(sample_size=8, norm_num_groups=4, **blocks), DDIMScheduler()).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="DDIMPipeline is not a text-to-image pipeline .*prompt"):
        TextToImage.load(tmp_path, params(tmp_path))
